//! A table of cases and the plans for them, and what holds for every row: a plan that was carried out leaves nothing to do, a
//! crash after any of its effects changes neither the end nor how often anything is done, and a stale plan is harmless.

mod cases;
mod corpus;
mod random;
mod simulation;

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;
use cases::{all_cases, drifted, foo, foreign};
use simulation::{Outcome, Simulation};

#[test]
fn each_sight_has_its_plan() {
    let width = all_cases().iter().map(|(case, _)| case.len()).max().unwrap_or_default();
    let row = |(case, simulation): &(&str, Simulation)| format!("{case:width$}  {}\n", simulation.plan());
    let table: String = all_cases().iter().map(row).collect();
    expect![[r"
        no Deployment                            create Deployment n/web
        settled                                  nothing
        more replicas available                  patch status of Foo n/a
        only the generation moved                patch status of Foo n/a
        others added a label and a field         nothing
        rescaled                                 apply Deployment n/web
        the Deployment is gone                   make sure that Foo n/a is there, create Deployment n/web
        drift of replicas                        apply Deployment n/web
        drift of the image                       apply Deployment n/web
        the container is another one             apply Deployment n/web
        drift of a label                         apply Deployment n/web
        all labels gone                          apply Deployment n/web
        drift of the template's labels           apply Deployment n/web
        drift of the selector                    apply Deployment n/web
        the owner no longer blocks               apply Deployment n/web
        a Deployment without owner               patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a Deployment of another controller       patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a Deployment of an earlier namesake      patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a Deployment with the Foo as mere owner  patch status of Foo n/a, event ErrResourceExists on Foo n/a
        a conflict that was reported             nothing
        a conflict that is over                  make sure that Foo n/a is there, create Deployment n/web
        the Deployment is terminating            patch status of Foo n/a
        terminating Foo, no Deployment           nothing
        terminating Foo, drift                   nothing
        terminating Foo, conflict                nothing
        terminating Foo, renamed                 nothing
        renamed                                  make sure that Foo n/a is there, create Deployment n/web
        renamed, the new one is there            delete Deployment n/old, patch status of Foo n/a
        renamed, the old one is terminating      patch status of Foo n/a
        renamed into a conflict                  patch status of Foo n/a, event ErrResourceExists on Foo n/a
    "]]
    .assert_eq(&table);
}

#[test]
fn a_plan_that_was_carried_out_leaves_nothing_to_do() {
    for (case, mut simulation) in all_cases() {
        let rounds = simulation.converge();
        assert!(rounds <= 3, "{case}: {rounds} rounds");
        assert_eq!(simulation.plan(), Plan::nothing(), "{case}");
    }
}

#[test]
fn a_crash_after_any_effect_changes_neither_the_end_nor_how_often_anything_is_done() {
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
    assert!(crashes > 30, "only {crashes} crashes were tried");
}

#[test]
fn a_plan_that_was_decided_on_a_stale_cache_changes_nothing() {
    for (case, mut simulation) in all_cases() {
        let stale = simulation.plan();
        simulation.converge();
        let (picture, history) = (simulation.snapshot(), simulation.history());
        // The applier stops at the first effect that is refused; events come last.
        let outcomes = stale.effects.iter().map(|effect| (effect, simulation.perform(effect)));
        let mut outcomes = outcomes.skip_while(|(effect, _)| matches!(effect, Effect::RequirePresent { .. }));
        let refused = outcomes.next().map(|(_, outcome)| outcome);
        assert_ne!(refused, Some(Outcome::Done), "{case}: {stale}");
        assert_eq!(
            (simulation.snapshot(), simulation.history()),
            (picture, history),
            "{case}"
        );
    }
}

#[test]
fn every_write_but_a_create_is_bound_to_the_object_that_was_seen() {
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
                Effect::RequireAbsent { .. } | Effect::Count { .. } | Effect::ObserveLatency { .. } => {
                    panic!("{case}: {effect}")
                }
            }
        }
    }
}

#[test]
fn a_refusal_is_said_once_and_taken_back_when_it_is_over() {
    let mut simulation = foo();
    let said = simulation.plan_refused("quota exceeded");
    assert_eq!(
        said.to_string(),
        "patch status of Foo n/a, event FailedCreate on Foo n/a"
    );
    for effect in &said.effects {
        simulation.perform(effect);
    }
    assert_eq!(
        simulation.plan_refused("quota exceeded"),
        Plan::nothing(),
        "it is said already"
    );
    let again = "make sure that Foo n/a is there, create Deployment n/web";
    assert_eq!(simulation.plan().to_string(), again, "and tried again");
    simulation.converge();
    assert_eq!(simulation.events(), ["FailedCreate", "Synced"]);
    let drifted = drifted("/spec/replicas", 9.into()).plan_refused("denied");
    assert_eq!(
        drifted.to_string(),
        "patch status of Foo n/a, event FailedUpdate on Foo n/a"
    );
}

fn check_json(value: &serde_json::Value, expected: &Expect) {
    expected.assert_eq(&format!("{value:#}\n"));
}

#[test]
fn the_deployment_is_the_one_that_sample_controller_makes() {
    let Some(Effect::Create(object)) = foo().plan().effects.pop() else {
        panic!("a Foo without a Deployment gets one");
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
fn a_drifted_deployment_is_applied_as_it_would_be_created() {
    let created = foo().plan().effects;
    let applied = drifted("/spec/replicas", 9.into()).plan().effects;
    let (Some(Effect::Create(created)), [Effect::Apply { object, .. }]) = (created.first(), &applied[..]) else {
        panic!("one create and one apply: {created:?} {applied:?}");
    };
    assert_eq!(created, object);
}

#[test]
fn the_status_says_what_was_seen() {
    let mut simulation = foo();
    simulation.step();
    let effects = simulation.plan().effects;
    let [Effect::PatchStatus { status, .. }, Effect::Event(_, note)] = &effects[..] else {
        panic!("a status and an event: {effects:?}");
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
          "observedGeneration": 1
        }
    "#]],
    );
    assert_eq!((note.type_, note.reason), (EventSeverity::Normal, "Synced"));
    assert_eq!(note.message, "Foo synced successfully");
}

#[test]
fn a_conflict_is_told_in_the_words_of_sample_controller() {
    let effects = foreign().plan().effects;
    let [Effect::PatchStatus { status, .. }, Effect::Event(_, note)] = &effects[..] else {
        panic!("a status and an event: {effects:?}");
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
fn events_tell_transitions_and_nothing_else() {
    let mut simulation = foo();
    simulation.converge();
    for replicas in 3..6 {
        simulation.foo["spec"]["replicas"] = replicas.into();
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
    simulation.foo["spec"]["deploymentName"] = "taken".into();
    simulation.add("taken", json!({}));
    simulation.add("taken-too", json!({}));
    simulation.converge();
    simulation.foo["spec"]["deploymentName"] = "taken-too".into();
    simulation.converge();
    assert_eq!(
        simulation.events()[3..],
        ["ErrResourceExists", "ErrResourceExists"],
        "each clash is news"
    );
}
