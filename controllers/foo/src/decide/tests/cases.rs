//! The cases: simulations in different states, each with its name in the table.

use serde_json::json;

use super::simulation::Simulation;

const DELETED: &str = "2026-01-02T03:04:05Z";

/// Returns a simulation without Deployments, with a Foo `a` that asks for two replicas of
/// Deployment `web`.
pub(super) fn foo() -> Simulation {
    Simulation::with_foo(json!({
        "metadata": {"namespace": "n", "name": "a", "uid": "foo-1", "generation": 1},
        "spec": {"deploymentName": "web", "replicas": 2},
    }))
}

/// Returns the same Foo after convergence: the Deployment matches the spec, and the status reports
/// it.
fn settled() -> Simulation {
    let mut simulation = foo();
    simulation.converge();
    simulation.clear_history();
    simulation
}

/// Returns the same Foo with a Deployment of that name that `owner` controls.
fn clash(owner: &serde_json::Value) -> Simulation {
    let mut simulation = foo();
    simulation.add(
        "web",
        json!({"metadata": {"ownerReferences": owner}, "spec": {"replicas": 7}}),
    );
    simulation
}

/// Returns the same Foo, converged under the name `old` and then renamed.
pub(super) fn renamed() -> Simulation {
    let mut simulation = foo();
    simulation.foo_mut()["spec"]["deploymentName"] = "old".into();
    simulation.converge();
    simulation.clear_history();
    simulation.foo_mut()["spec"]["deploymentName"] = "web".into();
    simulation.foo_mut()["metadata"]["generation"] = 2.into();
    simulation
}

pub(super) fn foreign() -> Simulation {
    clash(&json!([]))
}

/// Returns a converged simulation in which one field of the Deployment was changed.
pub(super) fn drifted(pointer: &str, value: serde_json::Value) -> Simulation {
    let mut simulation = settled();
    simulation.change("web", pointer, value);
    simulation
}

fn terminating(mut simulation: Simulation) -> Simulation {
    simulation.foo_mut()["metadata"]["deletionTimestamp"] = DELETED.into();
    simulation
}

pub(super) type Cases = Vec<(&'static str, Simulation)>;

/// Returns all cases.
pub(super) fn all_cases() -> Cases {
    [ordinary(), drifts(), conflicts(), deletions(), renames(), demands()].concat()
}

fn ordinary() -> Cases {
    let mut available = settled();
    available.change("web", "/status", json!({"availableReplicas": 2}));
    let mut touched = settled();
    touched.foo_mut()["metadata"]["generation"] = 2.into();
    let mut with_extras = settled();
    with_extras.change("web", "/metadata/labels/team", "blue".into());
    with_extras.change("web", "/spec/paused", true.into());
    let mut rescaled = settled();
    rescaled.foo_mut()["spec"]["replicas"] = 5.into();
    rescaled.foo_mut()["metadata"]["generation"] = 2.into();
    let mut gone = settled();
    gone.remove("web");
    vec![
        ("no Deployment", foo()),
        ("settled", settled()),
        ("more replicas available", available),
        ("only the generation changed", touched),
        ("others added a label and a field", with_extras),
        ("rescaled", rescaled),
        ("the Deployment was deleted", gone),
    ]
}

fn drifts() -> Cases {
    let container = |field: &str| format!("/spec/template/spec/containers/0/{field}");
    let blocking = "/metadata/ownerReferences/0/blockOwnerDeletion";
    vec![
        ("drift of replicas", drifted("/spec/replicas", 9.into())),
        ("drift of the image", drifted(&container("image"), "evil:1".into())),
        ("another container", drifted(&container("name"), "x".into())),
        ("drift of a label", drifted("/metadata/labels/app", "other".into())),
        ("all labels removed", drifted("/metadata/labels", json!({}))),
        (
            "drift of the template's labels",
            drifted("/spec/template/metadata/labels/app", "x".into()),
        ),
        (
            "drift of the selector",
            drifted("/spec/selector/matchLabels/app", "x".into()),
        ),
        ("blockOwnerDeletion is false", drifted(blocking, false.into())),
    ]
}

fn conflicts() -> Cases {
    let owner = |uid: &str, controller: bool| {
        json!([{"apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "a", "uid": uid,
            "controller": controller, "blockOwnerDeletion": true}])
    };
    let mut reported = foreign();
    reported.converge();
    reported.clear_history();
    let mut over = reported.clone();
    over.remove("web");
    vec![
        ("a Deployment without owner", foreign()),
        ("a Deployment of another controller", clash(&owner("other", true))),
        ("a Deployment of an earlier Foo", clash(&owner("foo-0", true))),
        ("the Foo owns but does not control it", clash(&owner("foo-1", false))),
        ("a reported conflict", reported),
        ("a conflict that ended", over),
    ]
}

fn deletions() -> Cases {
    let drift = drifted("/spec/replicas", 9.into());
    vec![
        (
            "the Deployment is terminating",
            drifted("/metadata/deletionTimestamp", DELETED.into()),
        ),
        ("terminating Foo, no Deployment", terminating(foo())),
        ("terminating Foo, drift", terminating(drift)),
        ("terminating Foo, conflict", terminating(foreign())),
        ("terminating Foo, renamed", terminating(renamed())),
    ]
}

/// Returns the renamed Foo after the new Deployment was created and the wait for it was reported.
pub(super) fn waiting() -> Simulation {
    let mut simulation = renamed();
    simulation.converge();
    simulation.clear_history();
    simulation
}

/// Adds another Foo that asks for a Deployment.
fn with_another_foo(mut simulation: Simulation, name: &str, deployment: &str) -> Simulation {
    simulation.add_foo(json!({
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "generation": 1},
        "spec": {"deploymentName": deployment, "replicas": 1},
    }));
    simulation
}

/// Adds a Deployment that another Foo controls.
fn with_deployment_of(mut simulation: Simulation, foo: &str, deployment: &str) -> Simulation {
    let owner = json!({"apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": foo,
        "uid": format!("uid-of-{foo}"), "controller": true, "blockOwnerDeletion": true});
    simulation.add(deployment, json!({"metadata": {"ownerReferences": [owner]}}));
    simulation
}

fn renames() -> Cases {
    let mut created = renamed();
    created.step();
    let mut old_one_dying = created.clone();
    old_one_dying.change("old", "/metadata/deletionTimestamp", DELETED.into());
    let mut too_few = waiting();
    too_few.change(
        "web",
        "/status",
        json!({"availableReplicas": 1, "observedGeneration": 1}),
    );
    let mut earlier_generation = waiting();
    earlier_generation.change("web", "/metadata/generation", 2.into());
    earlier_generation.change(
        "web",
        "/status",
        json!({"availableReplicas": 2, "observedGeneration": 1}),
    );
    let mut available = waiting();
    available.make_available("web");
    let mut deleted_by_hand = waiting();
    deleted_by_hand.remove("old");
    let mut over = waiting();
    over.make_available("web");
    over.converge();
    over.clear_history();
    vec![
        ("renamed", renamed()),
        ("renamed, the new one exists", created),
        ("renamed, the wait is reported", waiting()),
        ("renamed, too few Pods are available", too_few),
        ("renamed, only an earlier generation is available", earlier_generation),
        ("renamed, the new one is available", available),
        ("renamed, the old one is terminating", old_one_dying),
        ("renamed, somebody deleted the old one", deleted_by_hand),
        ("a rename that ended", over),
    ]
}

fn demands() -> Cases {
    let mut into_conflict = renamed();
    into_conflict.add("web", json!({"spec": {"replicas": 7}}));
    let mut dying = with_another_foo(waiting(), "b", "old");
    dying.write_foo("b", |foo| foo["metadata"]["deletionTimestamp"] = DELETED.into());
    let swapped = with_deployment_of(with_another_foo(renamed(), "b", "old"), "b", "web");
    let mut is_already_free = swapped.clone();
    is_already_free.change("web", "/metadata/deletionTimestamp", DELETED.into());
    let contested = with_another_foo(swapped.clone(), "c", "old");
    let mut no_longer_contested = contested.clone();
    no_longer_contested.write_foo("c", |foo| foo["metadata"]["deletionTimestamp"] = DELETED.into());
    let behind_another = with_another_foo(with_another_foo(renamed(), "b", "taken"), "c", "old");
    let mut behind_foreign = with_deployment_of(behind_another.clone(), "b", "web");
    behind_foreign.add("taken", json!({}));
    let cycle = with_deployment_of(with_deployment_of(behind_another, "b", "web"), "c", "taken");
    let rightful = with_deployment_of(with_another_foo(renamed(), "b", "web"), "b", "web");
    let beside_a_cycle = with_another_foo(
        with_another_foo(with_another_foo(renamed(), "b", "x"), "c", "web"),
        "d",
        "old",
    );
    let beside_a_cycle = with_deployment_of(with_deployment_of(beside_a_cycle, "b", "web"), "c", "x");
    vec![
        ("renamed into a conflict", into_conflict.clone()),
        ("the old name is wanted", with_another_foo(waiting(), "b", "old")),
        ("the old name is wanted by a terminating Foo", dying),
        (
            "the old name is wanted during a conflict",
            with_another_foo(into_conflict, "b", "old"),
        ),
        ("two Foos swap names", swapped),
        ("two Foos swap names, one name becomes free", is_already_free),
        ("two Foos swap names, a third one asks for one", contested),
        ("two Foos swap names, the third one terminates", no_longer_contested),
        ("three Foos exchange names", cycle),
        ("a Foo waits for one that is in conflict", behind_foreign),
        ("a Foo waits for two that exchange names", beside_a_cycle),
        (
            "the new name belongs to a Foo that keeps it",
            with_another_foo(rightful, "c", "old"),
        ),
    ]
}
