//! A table of cases with their plans, and properties that hold for every case: an executed plan
//! leaves nothing to do, a stale plan is harmless, and a crash after any effect neither changes the
//! final state nor repeats an effect.

mod admission;
mod cases;
mod corpus;
mod exchange;
mod random;
mod simulation;

use expect_test::{Expect, expect};
use portreeve_reconcile::EventSeverity;
use serde_json::json;

use super::*;
use cases::{all_cases, drifted, foo, foreign, renamed, waiting};
use simulation::{Outcome, Simulation};

#[test]
fn every_case_has_the_expected_plan() {
    let width = all_cases().iter().map(|(case, _)| case.len()).max().unwrap_or_default();
    let row = |(case, simulation): &(&str, Simulation)| format!("{case:width$}  {}\n", simulation.plan());
    let table: String = all_cases().iter().map(row).collect();
    expect![[r"
        no Deployment                                     create Deployment n/web
        settled                                           nothing
        more replicas available                           patch status of Foo n/a
        only the generation changed                       patch status of Foo n/a
        others added a label and a field                  nothing
        rescaled                                          apply Deployment n/web
        the Deployment was deleted                        check that Foo n/a exists, create Deployment n/web
        drift of replicas                                 apply Deployment n/web
        drift of the image                                apply Deployment n/web
        another container                                 apply Deployment n/web
        drift of a label                                  apply Deployment n/web
        all labels removed                                apply Deployment n/web
        drift of the template's labels                    apply Deployment n/web
        drift of the selector                             apply Deployment n/web
        blockOwnerDeletion is false                       apply Deployment n/web
        a Deployment without owner                        patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a Deployment of another controller                patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a Deployment of an earlier Foo                    patch status of Foo n/a, event ErrResourceExists on Foo n/a
        the Foo owns but does not control it              patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a reported conflict                               nothing
        a conflict that ended                             check that Foo n/a exists, create Deployment n/web
        the Deployment is terminating                     patch status of Foo n/a
        terminating Foo, no Deployment                    nothing
        terminating Foo, drift                            nothing
        terminating Foo, conflict                         nothing
        terminating Foo, renamed                          nothing
        renamed                                           check that Foo n/a exists, create Deployment n/web
        renamed, the new one exists                       patch status of Foo n/a, event Renaming on Foo n/a
        renamed, the wait is reported                     nothing
        renamed, too few Pods are available               patch status of Foo n/a
        renamed, only an earlier generation is available  patch status of Foo n/a
        renamed, the new one is available                 delete Deployment n/old, patch status of Foo n/a
        renamed, the old one is terminating               patch status of Foo n/a
        renamed, somebody deleted the old one             patch status of Foo n/a
        a rename that ended                               nothing
        renamed into a conflict                           patch status of Foo n/a, event ErrResourceExists on Foo n/a
        the old name is wanted                            delete Deployment n/old, patch status of Foo n/a
        the old name is wanted by a terminating Foo       nothing
        the old name is wanted during a conflict          patch status of Foo n/a, event ErrResourceExists on Foo n/a
        two Foos swap names                               delete Deployment n/old, patch status of Foo n/a, event ErrResourceExists on Foo n/a
        two Foos swap names, one name becomes free        patch status of Foo n/a, event ErrResourceExists on Foo n/a
        two Foos swap names, a third one asks for one     patch status of Foo n/a, event ErrResourceExists on Foo n/a
        two Foos swap names, the third one terminates     delete Deployment n/old, patch status of Foo n/a, event ErrResourceExists on Foo n/a
        three Foos exchange names                         delete Deployment n/old, patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a Foo waits for one that is in conflict           patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a Foo waits for two that exchange names           patch status of Foo n/a, event ErrResourceExists on Foo n/a
        the new name belongs to a Foo that keeps it       patch status of Foo n/a, event ErrResourceExists on Foo n/a
    "]]
    .assert_eq(&table);
}

#[test]
fn an_executed_plan_leaves_nothing_to_do() {
    for (case, mut simulation) in all_cases() {
        let rounds = simulation.converge();
        assert!(rounds <= 3, "{case}: {rounds} rounds");
        assert_eq!(simulation.plan(), Plan::nothing(), "{case}");
    }
}

#[test]
fn a_crash_after_any_effect_changes_no_result_and_repeats_no_effect() {
    let mut crashes = 0;
    for (case, start) in all_cases() {
        let mut undisturbed = start.clone();
        let rounds = undisturbed.converge();
        for round in 0..rounds {
            let mut before = start.clone();
            (0..round).for_each(|_| before.step());
            for done in 0..before.plan().effects.len() {
                let mut simulation = before.clone();
                let plan = simulation.plan();
                for effect in &plan.effects[..done] {
                    assert_eq!(simulation.perform(effect), Outcome::Done, "{case}: {effect}");
                }
                simulation.converge();
                assert_eq!(
                    simulation.snapshot(),
                    undisturbed.snapshot(),
                    "{case}: crash in round {round} after {done}"
                );
                for (what, times) in simulation.history() {
                    let allowed = undisturbed.history().get(&what).copied().unwrap_or_default();
                    assert!(
                        times <= allowed,
                        "{case}: {what} {times} times, crash in round {round} after {done}"
                    );
                }
                crashes += 1;
            }
        }
    }
    assert!(crashes > 30, "the test tried only {crashes} crashes");
}

#[test]
fn a_plan_from_a_stale_cache_changes_nothing() {
    for (case, mut simulation) in all_cases() {
        let stale = simulation.plan();
        simulation.converge();
        let (picture, history) = (simulation.snapshot(), simulation.history());
        // The applier stops at the first rejected effect; events come last.
        let outcomes = stale.effects.iter().map(|effect| (effect, simulation.perform(effect)));
        let mut outcomes = outcomes.skip_while(|(effect, _)| matches!(effect, Effect::RequirePresent { .. }));
        let rejected = outcomes.next().map(|(_, outcome)| outcome);
        assert_ne!(rejected, Some(Outcome::Done), "{case}: {stale}");
        assert_eq!(
            (simulation.snapshot(), simulation.history()),
            (picture, history),
            "{case}"
        );
    }
}

#[test]
fn every_write_except_create_has_preconditions() {
    for (case, simulation) in all_cases() {
        for effect in simulation.plan().effects {
            match effect {
                Effect::Create(object) => assert_eq!(object.body["metadata"].get("uid"), None, "{case}"),
                Effect::Apply { object, uid, version } => {
                    assert_eq!((uid, version), simulation.identity(&object.key.name), "{case}");
                }
                Effect::Delete { target, .. } => {
                    let name = &target.key.name;
                    assert_eq!((target.uid, target.version), simulation.identity(name), "{case}");
                }
                Effect::PatchStatus { target, .. } | Effect::Event(target, _) => {
                    assert_eq!((target.uid, target.version), simulation.foo_identity(), "{case}");
                }
                Effect::RequirePresent { uid, .. } => assert_eq!(uid, simulation.foo_identity().0, "{case}"),
                Effect::RequireAbsent { .. }
                | Effect::Read { .. }
                | Effect::List { .. }
                | Effect::Replace { .. }
                | Effect::Count { .. }
                | Effect::ObserveLatency { .. } => {
                    panic!("{case}: {effect}")
                }
            }
        }
    }
}

#[test]
fn a_rejection_is_reported_once_and_cleared_when_it_ends() {
    let mut simulation = foo();
    let plan = simulation.plan_after_rejection("quota exceeded");
    assert_eq!(
        plan.to_string(),
        "patch status of Foo n/a, event FailedCreate on Foo n/a"
    );
    for effect in &plan.effects {
        simulation.perform(effect);
    }
    assert_eq!(
        simulation.plan_after_rejection("quota exceeded"),
        Plan::nothing(),
        "the status already reports the rejection"
    );
    let again = "check that Foo n/a exists, create Deployment n/web";
    assert_eq!(simulation.plan().to_string(), again, "the create is retried");
    simulation.converge();
    assert_eq!(simulation.events(), ["FailedCreate", "Synced"]);
    let drifted = drifted("/spec/replicas", 9.into()).plan_after_rejection("denied");
    assert_eq!(
        drifted.to_string(),
        "patch status of Foo n/a, event FailedUpdate on Foo n/a"
    );
}

#[test]
fn a_rejected_deletion_leaves_the_foo_ready_and_is_reported_once() {
    let mut simulation = waiting();
    simulation.make_available("web");
    let plan = simulation.plan_after_rejection("denied");
    assert_eq!(
        plan.to_string(),
        "patch status of Foo n/a, event FailedDelete on Foo n/a"
    );
    for effect in &plan.effects {
        simulation.perform(effect);
    }
    let conditions = simulation.foo()["status"]["conditions"].as_array().unwrap();
    let conditions: Vec<_> = conditions
        .iter()
        .map(|condition| ["type", "status", "reason", "message"].map(|field| condition[field].as_str().unwrap()))
        .collect();
    let expected = [
        ["Ready", "True", "Synced", ""],
        ["Conflict", "False", "Synced", ""],
        ["Renaming", "True", "FailedDelete", "denied"],
    ];
    assert_eq!(conditions, expected);
    assert_eq!(
        simulation.plan_after_rejection("denied"),
        Plan::nothing(),
        "the status already reports the rejection"
    );
    let status = json!({"availableReplicas": 3, "observedGeneration": 1});
    simulation.change("web", "/status", status);
    let plan = simulation.plan_after_rejection("denied");
    assert_eq!(
        plan.to_string(),
        "patch status of Foo n/a",
        "the event is not sent again"
    );
    simulation.converge();
    assert_eq!(simulation.events(), ["FailedDelete"]);
}

#[test]
fn a_rename_that_begins_in_a_conflict_is_reported_when_it_waits_for_the_new_deployment() {
    let mut simulation = renamed();
    simulation.add("web", json!({}));
    simulation.converge();
    assert_eq!(simulation.events(), ["ErrResourceExists"]);
    simulation.remove("web");
    simulation.converge();
    let expected = ["ErrResourceExists", "Synced", "Renaming"];
    assert_eq!(simulation.events(), expected);
    let status = json!({"availableReplicas": 1, "observedGeneration": 1});
    simulation.change("web", "/status", status);
    simulation.converge();
    assert_eq!(simulation.events(), expected, "the event is not sent again");
}

fn check_json(value: &serde_json::Value, expected: &Expect) {
    expected.assert_eq(&format!("{value:#}\n"));
}

#[test]
fn deployment_equals_the_one_of_sample_controller() {
    let Some(Effect::Create(object)) = foo().plan().effects.pop() else {
        panic!("the plan must create the missing Deployment");
    };
    assert_eq!(
        object.body["spec"]["template"]["spec"]["containers"][0]["image"],
        "nginx:latest"
    );
    check_json(
        &object.body,
        &expect![[r#"
        {
          "apiVersion": "apps/v1",
          "kind": "Deployment",
          "metadata": {
            "labels": {
              "app": "nginx",
              "controller": "a"
            },
            "name": "web",
            "namespace": "n",
            "ownerReferences": [
              {
                "apiVersion": "samplecontroller.k8s.io/v1alpha1",
                "blockOwnerDeletion": true,
                "controller": true,
                "kind": "Foo",
                "name": "a",
                "uid": "foo-1"
              }
            ]
          },
          "spec": {
            "replicas": 2,
            "selector": {
              "matchLabels": {
                "app": "nginx",
                "controller": "a"
              }
            },
            "template": {
              "metadata": {
                "labels": {
                  "app": "nginx",
                  "controller": "a"
                }
              },
              "spec": {
                "containers": [
                  {
                    "image": "nginx:latest",
                    "name": "nginx"
                  }
                ]
              }
            }
          }
        }
    "#]],
    );
}

#[test]
fn status_reports_the_observed_state() {
    let mut simulation = foo();
    simulation.step();
    let effects = simulation.plan().effects;
    let [Effect::PatchStatus { status, .. }, Effect::Event(_, note)] = &effects[..] else {
        panic!("the plan must be a status and an event: {effects:?}");
    };
    check_json(
        status,
        &expect![[r#"
        {
          "availableReplicas": 0,
          "conditions": [
            {
              "lastTransitionTime": "1970-01-01T00:33:20Z",
              "message": "",
              "observedGeneration": 1,
              "reason": "Synced",
              "status": "True",
              "type": "Ready"
            },
            {
              "lastTransitionTime": "1970-01-01T00:33:20Z",
              "message": "",
              "observedGeneration": 1,
              "reason": "Synced",
              "status": "False",
              "type": "Conflict"
            }
          ],
          "labelSelector": "app=nginx,controller=a",
          "observedGeneration": 1
        }
    "#]],
    );
    assert_eq!((note.type_, note.reason), (EventSeverity::Normal, "Synced"));
    assert_eq!(note.message, "Foo synced successfully");
}

#[test]
fn conflict_has_the_message_of_sample_controller() {
    let effects = foreign().plan().effects;
    let [Effect::PatchStatus { status, .. }, Effect::Event(_, note)] = &effects[..] else {
        panic!("the plan must be a status and an event: {effects:?}");
    };
    check_json(
        &status["conditions"][1],
        &expect![[r#"
        {
          "lastTransitionTime": "1970-01-01T00:33:20Z",
          "message": "Resource \"web\" already exists and is not managed by Foo",
          "observedGeneration": 1,
          "reason": "ErrResourceExists",
          "status": "True",
          "type": "Conflict"
        }
    "#]],
    );
    assert_eq!((note.type_, note.reason), (EventSeverity::Warning, "ErrResourceExists"));
    assert_eq!(
        note.message,
        r#"Resource "web" already exists and is not managed by Foo"#
    );
}

#[test]
fn events_report_only_transitions() {
    let mut simulation = foo();
    simulation.converge();
    for replicas in 3..6 {
        simulation.foo_mut()["spec"]["replicas"] = replicas.into();
        simulation.converge();
        simulation.change("web", "/status", json!({"availableReplicas": replicas}));
        simulation.converge();
    }
    assert_eq!(simulation.events(), ["Synced"]);
    simulation.remove("web");
    simulation.add("web", json!({}));
    simulation.converge();
    simulation.change("web", "/metadata/labels", json!({"touched": "often"}));
    simulation.converge();
    assert_eq!(simulation.events(), ["Synced", "ErrResourceExists"]);
    simulation.remove("web");
    simulation.converge();
    assert_eq!(simulation.events(), ["Synced", "ErrResourceExists", "Synced"]);
    simulation.foo_mut()["spec"]["deploymentName"] = "taken".into();
    simulation.add("taken", json!({}));
    simulation.add("taken-too", json!({}));
    simulation.converge();
    simulation.foo_mut()["spec"]["deploymentName"] = "taken-too".into();
    simulation.converge();
    assert_eq!(
        simulation.events()[3..],
        ["ErrResourceExists", "ErrResourceExists"],
        "each new conflict is reported"
    );
}
