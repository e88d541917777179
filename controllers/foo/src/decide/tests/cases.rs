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
fn renamed() -> Simulation {
    let mut simulation = foo();
    simulation.foo["spec"]["deploymentName"] = "old".into();
    simulation.converge();
    simulation.clear_history();
    simulation.foo["spec"]["deploymentName"] = "web".into();
    simulation.foo["metadata"]["generation"] = 2.into();
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
    simulation.foo["metadata"]["deletionTimestamp"] = DELETED.into();
    simulation
}

pub(super) type Cases = Vec<(&'static str, Simulation)>;

/// Returns all cases.
pub(super) fn all_cases() -> Cases {
    [ordinary(), drifts(), conflicts(), deletions(), renames()].concat()
}

fn ordinary() -> Cases {
    let mut available = settled();
    available.change("web", "/status", json!({"availableReplicas": 2}));
    let mut touched = settled();
    touched.foo["metadata"]["generation"] = 2.into();
    let mut with_extras = settled();
    with_extras.change("web", "/metadata/labels/team", "blue".into());
    with_extras.change("web", "/spec/paused", true.into());
    let mut rescaled = settled();
    rescaled.foo["spec"]["replicas"] = 5.into();
    rescaled.foo["metadata"]["generation"] = 2.into();
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

fn renames() -> Cases {
    let mut both = renamed();
    both.step();
    let mut old_one_dying = both.clone();
    old_one_dying.change("old", "/metadata/deletionTimestamp", DELETED.into());
    let mut into_conflict = renamed();
    into_conflict.add("web", json!({"spec": {"replicas": 7}}));
    vec![
        ("renamed", renamed()),
        ("renamed, the new one exists", both),
        ("renamed, the old one is terminating", old_one_dying),
        ("renamed into a conflict", into_conflict),
    ]
}
