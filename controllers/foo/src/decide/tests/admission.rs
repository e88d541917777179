//! Policies that change the Deployments that are written.

use serde_json::{Value, json};

use super::{
    cases::{foo, renamed},
    simulation::Simulation,
};

const IMAGE: &str = "/spec/template/spec/containers/0/image";

fn mirrored(mut simulation: Simulation) -> Simulation {
    simulation.set_policy(IMAGE, "mirror.example/nginx:latest".into());
    simulation
}

/// Returns the status, the reason and the message of condition Ready.
fn ready(simulation: &Simulation) -> [&str; 3] {
    let ready = &simulation.foo()["status"]["conditions"][0];
    ["status", "reason", "message"].map(|field| ready[field].as_str().unwrap())
}

fn applies(simulation: &Simulation) -> usize {
    simulation
        .history()
        .get("apply Deployment n/web")
        .copied()
        .unwrap_or_default()
}

const CHANGED: [&str; 3] = [
    "True",
    "ChangedByAdmission",
    "Admission changed what the controller applied to the Deployment: spec.template.spec.containers[nginx].image",
];

#[test]
fn what_admission_made_of_the_deployment_is_reported_and_not_written_again() {
    let mut simulation = mirrored(foo());
    simulation.converge();
    assert_eq!((ready(&simulation), applies(&simulation)), (CHANGED, 0));
    assert_eq!(simulation.events(), ["ChangedByAdmission"]);
    for available in 0..3 {
        let status = json!({"availableReplicas": available, "observedGeneration": 1});
        simulation.change("web", "/status", status);
        simulation.converge();
        assert_eq!(simulation.foo()["status"]["availableReplicas"], available);
    }
    assert_eq!(applies(&simulation), 0, "the status is no reason for a write");
    // A new leader has to find out.
    simulation.restart();
    simulation.converge();
    assert_eq!((ready(&simulation), applies(&simulation)), (CHANGED, 1));
}

#[test]
fn a_change_of_the_foo_or_of_the_deployment_is_applied_in_spite_of_a_policy() {
    let mut simulation = mirrored(foo());
    simulation.converge();
    simulation.set_spec("a", "replicas", 5.into());
    simulation.converge();
    assert_eq!(simulation.deployments()["web"]["spec"]["replicas"], 5);
    assert_eq!((ready(&simulation), applies(&simulation)), (CHANGED, 1));
    let changes = [
        ("/spec/replicas", 7.into()),
        ("/metadata/labels/app", "other".into()),
        (IMAGE, "evil:1".into()),
    ];
    for (number, (pointer, value)) in changes.into_iter().enumerate() {
        let expected = simulation.deployments()["web"].pointer(pointer).cloned();
        simulation.change("web", pointer, value);
        simulation.converge();
        assert_eq!(simulation.deployments()["web"].pointer(pointer).cloned(), expected);
        assert_eq!((ready(&simulation), applies(&simulation)), (CHANGED, number + 2));
    }
}

#[test]
fn the_next_write_without_the_policy_ends_its_effects() {
    let mut simulation = mirrored(foo());
    simulation.converge();
    simulation.remove_policies();
    simulation.converge();
    assert_eq!((ready(&simulation), applies(&simulation)), (CHANGED, 0));
    simulation.change("web", "/metadata/labels/team", "blue".into());
    simulation.converge();
    assert_eq!(
        simulation.deployments()["web"].pointer(IMAGE),
        Some(&json!("nginx:latest"))
    );
    assert_eq!((ready(&simulation), applies(&simulation)), (["True", "Synced", ""], 1));
    assert_eq!(simulation.events(), ["ChangedByAdmission", "Synced"]);
}

#[test]
fn a_rename_ends_when_all_pods_that_admission_allows_are_available() {
    let mut simulation = mirrored(renamed());
    simulation.set_policy("/spec/replicas", 1.into());
    simulation.converge();
    assert!(simulation.deployments().contains_key("old"));
    simulation.make_available("web");
    simulation.converge();
    assert!(!simulation.deployments().contains_key("old"));
    assert_eq!(simulation.foo()["status"]["availableReplicas"], 1);
}

#[test]
fn the_reported_selector_is_that_of_the_deployment() {
    let mut simulation = foo();
    simulation.set_policy("/spec/selector/matchLabels", json!({"app": "nginx", "team": "blue"}));
    simulation.converge();
    assert_eq!(simulation.foo()["status"]["labelSelector"], "app=nginx,team=blue");
}

/// It is then a Deployment that the Foo does not control.
#[test]
fn a_policy_that_removes_the_owner_causes_a_conflict_and_no_write() {
    let mut simulation = foo();
    simulation.set_policy("/metadata/ownerReferences", json!([]));
    simulation.converge();
    assert_eq!(ready(&simulation)[..2], ["False", "ErrResourceExists"]);
    let web: &Value = &simulation.deployments()["web"];
    assert_eq!((&web["metadata"]["generation"], applies(&simulation)), (&json!(1), 0));
}
