//! What a Foo may see of the simulation, each under the name that the table gives it.

use serde_json::json;

use super::simulation::Simulation;

const DELETED: &str = "2026-01-02T03:04:05Z";

/// A Foo `a` that wants two replicas of Deployment `web`, in a simulation without Deployments.
pub(super) fn foo() -> Simulation {
    Simulation::with_foo(json!({
        "metadata": {"namespace": "n", "name": "a", "uid": "foo-1", "generation": 1},
        "spec": {"deploymentName": "web", "replicas": 2},
    }))
}

/// The same, long settled: its Deployment is as it asks, and its status says so.
fn settled() -> Simulation {
    let mut simulation = foo();
    simulation.converge();
    simulation.clear_history();
    simulation
}

/// The same, with a Deployment of that name which `owner` controls.
fn clash(owner: &serde_json::Value) -> Simulation {
    let mut simulation = foo();
    simulation.add(
        "web",
        json!({"metadata": {"ownerReferences": owner}, "spec": {"replicas": 7}}),
    );
    simulation
}

/// The same, settled under the old name `old`, and then renamed.
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

/// A settled simulation whose Deployment was changed at one place.
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

/// Every case that the table below looks at.
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
        ("only the generation moved", touched),
        ("others added a label and a field", with_extras),
        ("rescaled", rescaled),
        ("the Deployment is gone", gone),
    ]
}

fn drifts() -> Cases {
    let container = |field: &str| format!("/spec/template/spec/containers/0/{field}");
    let blocking = "/metadata/ownerReferences/0/blockOwnerDeletion";
    vec![
        ("drift of replicas", drifted("/spec/replicas", 9.into())),
        ("drift of the image", drifted(&container("image"), "evil:1".into())),
        ("the container is another one", drifted(&container("name"), "x".into())),
        ("drift of a label", drifted("/metadata/labels/app", "other".into())),
        ("all labels gone", drifted("/metadata/labels", json!({}))),
        (
            "drift of the template's labels",
            drifted("/spec/template/metadata/labels/app", "x".into()),
        ),
        (
            "drift of the selector",
            drifted("/spec/selector/matchLabels/app", "x".into()),
        ),
        ("the owner no longer blocks", drifted(blocking, false.into())),
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
        ("a Deployment of an earlier namesake", clash(&owner("foo-0", true))),
        ("a Deployment with the Foo as mere owner", clash(&owner("foo-1", false))),
        ("a conflict that was reported", reported),
        ("a conflict that is over", over),
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
        ("renamed, the new one is there", both),
        ("renamed, the old one is terminating", old_one_dying),
        ("renamed into a conflict", into_conflict),
    ]
}
