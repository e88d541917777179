//! The cases of Kubernetes' `TestConflictingData`, by their names there, over the graph. Two things differ by design: an object that was
//! seen is not read again before it is deleted, and an attempt at a virtual node tries every way in which it is referred to.

use super::stage::{DEPLOYMENTS, NODES, Named, OLD_DEPLOYMENTS, OLD_ROLES, PODS, ROLES, SECRETS, Stage};

const POD1: Named = (PODS, "ns1", "podname1", "poduid1");
const POD2: Named = (PODS, "ns1", "podname2", "poduid2");
const POD2_NS2: Named = (PODS, "ns2", "podname2", "poduid2");
const NODE1: Named = (NODES, "", "nodename", "nodeuid1");
const ROLE1: Named = (ROLES, "ns1", "role1", "roleuid1");
const OLD_ROLE1: Named = (OLD_ROLES, "ns1", "role1", "roleuid1");
const DEPLOYMENT1: Named = (DEPLOYMENTS, "ns1", "deployment1", "deploymentuid1");
const OLD_DEPLOYMENT1: Named = (OLD_DEPLOYMENTS, "ns1", "deployment1", "deploymentuid1");
const SECRET_WITH_UID_OF_DEPLOYMENT: Named = (SECRETS, "ns1", "secretname", "deploymentuid1");
const BAD_POD: Named = (PODS, "ns1", "badpod", "badpoduid");
const GOOD_POD: Named = (PODS, "ns1", "goodpod", "goodpoduid");

const NOTHING: [&str; 0] = [];

#[test]
fn good_child_in_ns1_to_cluster_scoped_owner() {
    let mut stage = Stage::new();
    stage.make(NODE1, &[]);
    stage.make_and_see(POD1, &[NODE1]);
    assert_eq!(
        (stage.queue(), stage.is_virtual("nodeuid1")),
        (vec!["nodeuid1".to_owned()], Some(true))
    );
    assert_eq!(stage.attempt(), ["get v1/Node ns1/nodename"]);
    assert_eq!(
        stage.queue(),
        ["nodeuid1"],
        "it is looked at again until a watch shows it"
    );
    stage.see(NODE1);
    assert_eq!(stage.is_virtual("nodeuid1"), Some(false));
    assert_eq!(stage.attempt(), NOTHING);
    assert_eq!(
        (stage.queue(), stage.edges()),
        (vec![], vec!["poduid1 -> nodeuid1".to_owned()])
    );
}

#[test]
fn bad_child_in_ns1_to_owner_in_ns2_child_first() {
    let mut stage = Stage::new();
    stage.make_and_see(POD1, &[POD2]);
    stage.make_and_see(POD2_NS2, &[]);
    assert_eq!(
        stage.told(),
        ["[v1/Pod, namespace: ns1, name: podname2, uid: poduid2] of podname1"]
    );
    assert_eq!(stage.queue(), ["poduid2", "poduid1"]);
    assert_eq!(stage.attempt(), NOTHING, "the owner was seen, and has no owner");
    assert_eq!(
        stage.attempt(),
        ["get v1/Pod ns1/podname2", "delete v1/Pod ns1/podname1 Background"]
    );
    stage.see_end(POD1);
    assert!(stage.is_there(POD2_NS2) && stage.queue().is_empty() && stage.edges().is_empty());
}

#[test]
fn bad_child_in_ns1_to_owner_in_ns2_owner_first() {
    let mut stage = Stage::new();
    stage.make_and_see(POD2_NS2, &[]);
    stage.make_and_see(POD1, &[POD2]);
    assert_eq!(
        stage.told(),
        ["[v1/Pod, namespace: ns1, name: podname2, uid: poduid2] of podname1"]
    );
    assert_eq!(
        stage.attempt(),
        ["get v1/Pod ns1/podname2", "delete v1/Pod ns1/podname1 Background"]
    );
    stage.see_end(POD1);
    assert!(stage.is_there(POD2_NS2) && stage.queue().is_empty());
}

#[test]
fn bad_cluster_scoped_child_to_owner_in_ns1_child_first() {
    let mut stage = Stage::new();
    stage.make(POD1, &[]);
    stage.make_and_see(NODE1, &[POD1]);
    assert_eq!(stage.queue(), ["poduid1"]);
    assert_eq!(
        stage.attempt(),
        ["get v1/Pod -/podname1"],
        "which the shell answers by itself"
    );
    assert!(stage.queue().is_empty(), "{:?}", stage.queue());
    stage.see(POD1);
    assert_eq!(
        stage.told(),
        ["[v1/Pod, namespace: , name: podname1, uid: poduid1] of nodename"]
    );
    assert_eq!(stage.queue(), ["nodeuid1"]);
    assert_eq!(stage.attempt(), ["get v1/Pod -/podname1"]);
    assert!(stage.queue().is_empty() && stage.is_there(NODE1) && stage.is_there(POD1));
}

#[test]
fn bad_cluster_scoped_child_to_owner_in_ns1_owner_first() {
    let mut stage = Stage::new();
    stage.make_and_see(POD1, &[]);
    stage.make_and_see(NODE1, &[POD1]);
    assert_eq!(
        stage.told(),
        ["[v1/Pod, namespace: , name: podname1, uid: poduid1] of nodename"]
    );
    assert_eq!(stage.attempt(), ["get v1/Pod -/podname1"]);
    assert!(stage.queue().is_empty() && stage.is_there(NODE1) && stage.is_there(POD1));
}

#[test]
fn good_child_to_existing_owner_with_non_preferred_accessible_api_version() {
    let mut stage = Stage::new();
    stage.make(ROLE1, &[]);
    stage.make_and_see(POD1, &[OLD_ROLE1]);
    assert_eq!(
        stage.attempt(),
        ["get rbac.authorization.k8s.io/v1beta1/Role ns1/role1"]
    );
    stage.see(ROLE1);
    assert_eq!(stage.queue(), ["poduid1", "roleuid1"]);
    assert_eq!(
        stage.attempt(),
        ["get rbac.authorization.k8s.io/v1beta1/Role ns1/role1"]
    );
    assert_eq!(stage.attempt(), NOTHING);
    assert!(stage.queue().is_empty() && stage.told().is_empty());
    stage.end_and_see(ROLE1);
    assert_eq!(
        stage.attempt(),
        [
            "get rbac.authorization.k8s.io/v1beta1/Role ns1/role1",
            "delete v1/Pod ns1/podname1 Background"
        ]
    );
    stage.see_end(POD1);
    assert!(stage.collector.graph.is_empty());
}

#[test]
fn child_to_existing_owner_with_inaccessible_api_version_child_first() {
    let mut stage = Stage::new();
    stage.make(DEPLOYMENT1, &[]);
    stage.make_and_see(POD1, &[OLD_DEPLOYMENT1]);
    let asked = ["get extensions/v1beta1/Deployment ns1/deployment1"];
    assert_eq!(
        stage.attempt(),
        asked,
        "which the shell answers by itself: it is not served"
    );
    assert_eq!(stage.queue(), ["deploymentuid1"]);
    stage.see(DEPLOYMENT1);
    assert_eq!(stage.queue(), ["poduid1", "deploymentuid1"]);
    assert_eq!(stage.attempt(), asked);
    assert_eq!(
        stage.queue(),
        ["poduid1", "deploymentuid1"],
        "nobody can tell, so it is asked again"
    );
    stage.end_and_see(DEPLOYMENT1);
    assert_eq!(stage.attempt(), asked);
    assert!(stage.is_there(POD1) && stage.queue().contains(&"poduid1".to_owned()));
}

#[test]
fn child_to_existing_owner_with_inaccessible_api_version_owner_first() {
    let mut stage = Stage::new();
    stage.make_and_see(DEPLOYMENT1, &[]);
    stage.make_and_see(POD1, &[OLD_DEPLOYMENT1]);
    let asked = ["get extensions/v1beta1/Deployment ns1/deployment1"];
    assert_eq!(stage.attempt(), asked);
    stage.end_and_see(DEPLOYMENT1);
    assert_eq!(stage.attempt(), asked);
    assert!(stage.is_there(POD1));
    assert_eq!(stage.queue(), ["poduid1"]);
}

#[test]
fn child_to_non_existent_owner_with_inaccessible_api_version_inaccessible_parent_first() {
    let mut stage = Stage::new();
    stage.make_and_see(POD1, &[OLD_DEPLOYMENT1]);
    stage.make_and_see(POD2, &[DEPLOYMENT1]);
    assert_eq!(stage.queue(), ["deploymentuid1", "poduid2"]);
    assert_eq!(stage.attempt().len(), 2, "each of the two ways is tried");
    assert_eq!(stage.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    stage.see_end(POD2);
    assert!(stage.is_there(POD1));
    assert_eq!(stage.queue(), ["deploymentuid1"], "which may be served one day");
}

#[test]
fn child_to_non_existent_owner_with_inaccessible_api_version_accessible_parent_first() {
    let mut stage = Stage::new();
    stage.make_and_see(POD2, &[DEPLOYMENT1]);
    stage.make_and_see(POD1, &[OLD_DEPLOYMENT1]);
    assert_eq!(stage.queue(), ["deploymentuid1", "poduid1"]);
    assert_eq!(stage.attempt().len(), 2);
    assert_eq!(stage.attempt(), ["get extensions/v1beta1/Deployment ns1/deployment1"]);
    assert_eq!(stage.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    stage.see_end(POD2);
    assert!(stage.is_there(POD1));
    let mut queue = stage.queue();
    queue.sort();
    assert_eq!(queue, ["deploymentuid1", "poduid1"]);
}

#[test]
fn bad_child_to_existing_owner_with_incorrect_api_version_bad_good_absence_parent() {
    let mut stage = Stage::new();
    stage.make(DEPLOYMENT1, &[]);
    stage.make_and_see(BAD_POD, &[SECRET_WITH_UID_OF_DEPLOYMENT]);
    stage.make_and_see(GOOD_POD, &[DEPLOYMENT1]);
    assert_eq!(stage.queue(), ["deploymentuid1", "goodpoduid"]);
    let mut asked = stage.attempt();
    asked.sort();
    assert_eq!(
        asked.first().map(String::as_str),
        Some("get apps/v1/Deployment ns1/deployment1")
    );
    assert_eq!(
        stage.attempt(),
        ["get apps/v1/Deployment ns1/deployment1"],
        "the good child is kept"
    );
    stage.see(DEPLOYMENT1);
    while stage.is_there(BAD_POD) {
        stage.attempt();
    }
    stage.see_end(BAD_POD);
    stage.collector.settle(&mut stage.world).unwrap();
    assert!(stage.is_there(GOOD_POD) && stage.is_there(DEPLOYMENT1));
    assert_eq!(stage.edges(), ["goodpoduid -> deploymentuid1"]);
}

#[test]
fn bad_child_to_existing_owner_with_incorrect_api_version_bad_good_parent_absence() {
    let mut stage = Stage::new();
    stage.make(DEPLOYMENT1, &[]);
    stage.make_and_see(BAD_POD, &[SECRET_WITH_UID_OF_DEPLOYMENT]);
    stage.make_and_see(GOOD_POD, &[DEPLOYMENT1]);
    // The parent is seen between the question and its answer.
    stage.collector.begin();
    stage.collector.step(&mut stage.world, 0);
    stage.see(DEPLOYMENT1);
    while stage.is_there(BAD_POD) {
        stage.attempt();
    }
    stage.see_end(BAD_POD);
    stage.collector.settle(&mut stage.world).unwrap();
    assert!(stage.is_there(GOOD_POD) && stage.is_there(DEPLOYMENT1));
    assert_eq!(stage.edges(), ["goodpoduid -> deploymentuid1"]);
    assert!(stage.told().is_empty(), "coordinates that differ are no event");
}

#[test]
fn bad_child_to_existing_owner_with_incorrect_api_version_good_bad_parent() {
    let mut stage = Stage::new();
    stage.make(DEPLOYMENT1, &[]);
    stage.make_and_see(GOOD_POD, &[DEPLOYMENT1]);
    stage.make_and_see(BAD_POD, &[SECRET_WITH_UID_OF_DEPLOYMENT]);
    assert_eq!(stage.queue(), ["deploymentuid1", "badpoduid"]);
    stage.attempt();
    let asked = stage.attempt();
    assert_eq!(
        asked.last().map(String::as_str),
        Some("delete v1/Pod ns1/badpod Background")
    );
    stage.see(DEPLOYMENT1);
    stage.see_end(BAD_POD);
    stage.collector.settle(&mut stage.world).unwrap();
    assert!(stage.is_there(GOOD_POD) && stage.is_there(DEPLOYMENT1));
}

#[test]
fn cluster_scoped_bad_child_namespaced_good_child_missing_parent() {
    let mut stage = Stage::new();
    stage.make_and_see(NODE1, &[POD1]);
    stage.make_and_see(POD2, &[POD1]);
    assert_eq!(stage.queue(), ["poduid1", "poduid2"]);
    stage.attempt();
    assert_eq!(stage.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    stage.see_end(POD2);
    stage.collector.settle(&mut stage.world).unwrap();
    assert!(stage.is_there(NODE1) && stage.queue().is_empty(), "{:?}", stage.queue());
}

#[test]
fn cluster_scoped_bad_child_namespaced_good_child_late_observed_parent() {
    let mut stage = Stage::new();
    stage.make(POD1, &[]);
    stage.make_and_see(NODE1, &[POD1]);
    stage.make_and_see(POD2, &[POD1]);
    stage.attempt();
    assert_eq!(stage.attempt(), ["get v1/Pod ns1/podname1"], "the good child is kept");
    stage.see(POD1);
    assert_eq!(
        stage.told(),
        ["[v1/Pod, namespace: , name: podname1, uid: poduid1] of nodename"]
    );
    stage.collector.settle(&mut stage.world).unwrap();
    assert!(stage.is_there(NODE1) && stage.is_there(POD1) && stage.is_there(POD2));
    assert!(stage.queue().is_empty(), "{:?}", stage.queue());
}

#[test]
fn namespaced_good_child_cluster_scoped_bad_child_missing_parent() {
    let mut stage = Stage::new();
    stage.make_and_see(POD2, &[POD1]);
    stage.make_and_see(NODE1, &[POD1]);
    assert_eq!(stage.queue(), ["poduid1", "nodeuid1"]);
    stage.attempt();
    assert_eq!(stage.attempt(), ["get v1/Pod -/podname1"]);
    assert_eq!(stage.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    stage.see_end(POD2);
    stage.collector.settle(&mut stage.world).unwrap();
    assert!(stage.is_there(NODE1) && stage.queue().is_empty(), "{:?}", stage.queue());
}

#[test]
fn resource_version_conflict_while_processing_object_deletion() {
    let mut stage = Stage::new();
    stage.make_and_see(POD1, &[]);
    stage.make_and_see(ROLE1, &[]);
    stage.make_and_see(POD2, &[POD1]);
    stage.end_and_see(POD1);
    // Somebody gives it another owner, and then changes something else; no watch has told of either.
    stage.change(POD2, &[ROLE1]);
    assert_eq!(stage.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    assert!(
        stage.is_there(POD2),
        "the version has changed, and the new owner keeps it"
    );
    stage.see(POD2);
    stage.end_and_see(ROLE1);
    stage.change(POD2, &[ROLE1]);
    let asked = stage.attempt();
    assert_eq!(
        asked,
        [
            "delete v1/Pod ns1/podname2 Background",
            "delete v1/Pod ns1/podname2 Background"
        ],
        "its owners are what they were, so it is tried again at once"
    );
    assert!(!stage.is_there(POD2));
}
