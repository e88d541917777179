//! The cases of Kubernetes' `TestAttemptToDeleteItem…`, over the graph.

use super::stage::{Named, PODS, Stage};
use crate::verdict::Policy;

const CONTROLLERS: &str = "v1/Node";
const OWNER: Named = (CONTROLLERS, "", "owner1", "123");
const POD: Named = (PODS, "ns1", "ToBeDeletedPod", "456");

#[test]
fn attempt_to_delete_item() {
    let mut stage = Stage::new();
    stage.make_and_see(POD, &[OWNER]);
    stage.attempt();
    assert_eq!(stage.attempt(), ["delete v1/Pod ns1/ToBeDeletedPod Background"]);
    assert!(!stage.is_there(POD));
}

#[test]
fn attempt_to_delete_item_that_is_known_by_references_alone() {
    let mut stage = Stage::new();
    stage.make(POD, &[OWNER]);
    let child: Named = (PODS, "ns1", "child", "789");
    stage.make_and_see(child, &[POD]);
    let asked = [
        "get v1/Pod ns1/ToBeDeletedPod",
        "get v1/Node ns1/owner1",
        "delete v1/Pod ns1/ToBeDeletedPod Background",
    ];
    assert_eq!(stage.attempt(), asked, "it has an owner itself, which is absent");
    assert_eq!(stage.is_virtual("456"), Some(true));
}

#[test]
fn attempt_to_delete_item_delete_object_not_found() {
    let mut stage = Stage::new();
    stage.make_and_see(POD, &[OWNER]);
    stage.attempt();
    stage.end(POD);
    assert_eq!(stage.attempt(), ["delete v1/Pod ns1/ToBeDeletedPod Background"]);
    assert_eq!(
        stage.is_virtual("456"),
        None,
        "it is taken to be gone before any watch tells"
    );
    assert!(stage.queue().is_empty());
}

#[test]
fn attempt_to_delete_item_delete_object_not_found_waiting_for_dependents() {
    let mut stage = Stage::new();
    stage.make_and_see(OWNER, &[]);
    stage.make_and_see(POD, &[OWNER]);
    stage
        .world
        .delete(&(CONTROLLERS.to_owned(), None, "owner1".into()), Policy::Foreground);
    stage.see(OWNER);
    stage.end(POD);
    while stage.is_virtual("456").is_some() {
        stage.attempt();
    }
    stage.collector.settle(&mut stage.world).unwrap();
    assert!(!stage.is_there(OWNER), "nothing blocks it any more");
}
