//! The cases of Kubernetes' `TestAttemptToDeleteItem…`, applied to the graph.

use super::fixtures::{Fixture, Named, PODS};
use crate::verdict::PropagationPolicy;

const OWNER_KIND: &str = "v1/Node";
const OWNER: Named = (OWNER_KIND, "", "owner1", "123");
const POD: Named = (PODS, "ns1", "ToBeDeletedPod", "456");

#[test]
fn attempt_to_delete_item() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD, &[OWNER]);
    fixture.attempt();
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/ToBeDeletedPod Background"]);
    assert!(!fixture.is_there(POD));
}

#[test]
fn attempt_to_delete_item_that_is_known_by_references_alone() {
    let mut fixture = Fixture::new();
    fixture.create(POD, &[OWNER]);
    let child: Named = (PODS, "ns1", "child", "789");
    fixture.create_and_observe(child, &[POD]);
    let asked = [
        "get v1/Pod ns1/ToBeDeletedPod",
        "get v1/Node ns1/owner1",
        "delete v1/Pod ns1/ToBeDeletedPod Background",
    ];
    assert_eq!(fixture.attempt(), asked, "the pod's own owner is absent");
    assert_eq!(fixture.is_virtual("456"), Some(true));
}

#[test]
fn attempt_to_delete_item_delete_object_not_found() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD, &[OWNER]);
    fixture.attempt();
    fixture.delete(POD);
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/ToBeDeletedPod Background"]);
    assert_eq!(
        fixture.is_virtual("456"),
        None,
        "the graph drops it before any watch reports its deletion"
    );
    assert!(fixture.queue().is_empty());
}

#[test]
fn attempt_to_delete_item_delete_object_not_found_waiting_for_dependents() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(OWNER, &[]);
    fixture.create_and_observe(POD, &[OWNER]);
    fixture.simulation.delete(
        &(OWNER_KIND.to_owned(), None, "owner1".into()),
        PropagationPolicy::Foreground,
    );
    fixture.observe(OWNER);
    fixture.delete(POD);
    while fixture.is_virtual("456").is_some() {
        fixture.attempt();
    }
    fixture.collector.run_until_idle(&mut fixture.simulation).unwrap();
    assert!(!fixture.is_there(OWNER), "nothing blocks its deletion");
}
