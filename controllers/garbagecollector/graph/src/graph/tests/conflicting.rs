//! The cases of Kubernetes' `TestConflictingData`, under their names there, applied to the graph.
//! Two things differ by design. An object that a watch has reported is not read again before it is
//! deleted. An attempt to process a virtual node tries every identity that references give it.

use super::fixtures::{DEPLOYMENTS, Fixture, NODES, Named, OLD_DEPLOYMENTS, OLD_ROLES, PODS, ROLES, SECRETS};

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
    let mut fixture = Fixture::new();
    fixture.create(NODE1, &[]);
    fixture.create_and_observe(POD1, &[NODE1]);
    assert_eq!(
        (fixture.queue(), fixture.is_virtual("nodeuid1")),
        (vec!["nodeuid1".to_owned()], Some(true))
    );
    assert_eq!(fixture.attempt(), ["get v1/Node ns1/nodename"]);
    assert_eq!(
        fixture.queue(),
        ["nodeuid1"],
        "it is processed again until a watch reports it"
    );
    fixture.observe(NODE1);
    assert_eq!(fixture.is_virtual("nodeuid1"), Some(false));
    assert_eq!(fixture.attempt(), NOTHING);
    assert_eq!(
        (fixture.queue(), fixture.edges()),
        (vec![], vec!["poduid1 -> nodeuid1".to_owned()])
    );
}

#[test]
fn bad_child_in_ns1_to_owner_in_ns2_child_first() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD1, &[POD2]);
    fixture.create_and_observe(POD2_NS2, &[]);
    assert_eq!(
        fixture.take_invalid_references(),
        ["[v1/Pod, namespace: ns1, name: podname2, uid: poduid2] of podname1"]
    );
    assert_eq!(fixture.queue(), ["poduid2", "poduid1"]);
    assert_eq!(
        fixture.attempt(),
        NOTHING,
        "a watch has reported the owner, and it has no owner"
    );
    assert_eq!(
        fixture.attempt(),
        ["get v1/Pod ns1/podname2", "delete v1/Pod ns1/podname1 Background"]
    );
    fixture.observe_deleted(POD1);
    assert!(fixture.is_there(POD2_NS2) && fixture.queue().is_empty() && fixture.edges().is_empty());
}

#[test]
fn bad_child_in_ns1_to_owner_in_ns2_owner_first() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD2_NS2, &[]);
    fixture.create_and_observe(POD1, &[POD2]);
    assert_eq!(
        fixture.take_invalid_references(),
        ["[v1/Pod, namespace: ns1, name: podname2, uid: poduid2] of podname1"]
    );
    assert_eq!(
        fixture.attempt(),
        ["get v1/Pod ns1/podname2", "delete v1/Pod ns1/podname1 Background"]
    );
    fixture.observe_deleted(POD1);
    assert!(fixture.is_there(POD2_NS2) && fixture.queue().is_empty());
}

#[test]
fn bad_cluster_scoped_child_to_owner_in_ns1_child_first() {
    let mut fixture = Fixture::new();
    fixture.create(POD1, &[]);
    fixture.create_and_observe(NODE1, &[POD1]);
    assert_eq!(fixture.queue(), ["poduid1"]);
    assert_eq!(
        fixture.attempt(),
        ["get v1/Pod -/podname1"],
        "the shell answers this without a request"
    );
    assert!(fixture.queue().is_empty(), "{:?}", fixture.queue());
    fixture.observe(POD1);
    assert_eq!(
        fixture.take_invalid_references(),
        ["[v1/Pod, namespace: , name: podname1, uid: poduid1] of nodename"]
    );
    assert_eq!(fixture.queue(), ["nodeuid1"]);
    assert_eq!(fixture.attempt(), ["get v1/Pod -/podname1"]);
    assert!(fixture.queue().is_empty() && fixture.is_there(NODE1) && fixture.is_there(POD1));
}

#[test]
fn bad_cluster_scoped_child_to_owner_in_ns1_owner_first() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD1, &[]);
    fixture.create_and_observe(NODE1, &[POD1]);
    assert_eq!(
        fixture.take_invalid_references(),
        ["[v1/Pod, namespace: , name: podname1, uid: poduid1] of nodename"]
    );
    assert_eq!(fixture.attempt(), ["get v1/Pod -/podname1"]);
    assert!(fixture.queue().is_empty() && fixture.is_there(NODE1) && fixture.is_there(POD1));
}

#[test]
fn good_child_to_existing_owner_with_non_preferred_accessible_api_version() {
    let mut fixture = Fixture::new();
    fixture.create(ROLE1, &[]);
    fixture.create_and_observe(POD1, &[OLD_ROLE1]);
    assert_eq!(
        fixture.attempt(),
        ["get rbac.authorization.k8s.io/v1beta1/Role ns1/role1"]
    );
    fixture.observe(ROLE1);
    assert_eq!(fixture.queue(), ["poduid1", "roleuid1"]);
    assert_eq!(
        fixture.attempt(),
        ["get rbac.authorization.k8s.io/v1beta1/Role ns1/role1"]
    );
    assert_eq!(fixture.attempt(), NOTHING);
    assert!(fixture.queue().is_empty() && fixture.take_invalid_references().is_empty());
    fixture.delete_and_observe(ROLE1);
    // The observed deletion proves the owner absent in every version.
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/podname1 Background"]);
    fixture.observe_deleted(POD1);
    assert!(fixture.collector.graph.is_empty());
}

#[test]
fn child_to_existing_owner_with_inaccessible_api_version_child_first() {
    let mut fixture = Fixture::new();
    fixture.create(DEPLOYMENT1, &[]);
    fixture.create_and_observe(POD1, &[OLD_DEPLOYMENT1]);
    let asked = ["get extensions/v1beta1/Deployment ns1/deployment1"];
    assert_eq!(
        fixture.attempt(),
        asked,
        "the shell answers this without a request: the kind is not served"
    );
    assert_eq!(fixture.queue(), ["deploymentuid1"]);
    fixture.observe(DEPLOYMENT1);
    assert_eq!(fixture.queue(), ["poduid1", "deploymentuid1"]);
    assert_eq!(fixture.attempt(), asked);
    assert_eq!(
        fixture.queue(),
        ["poduid1", "deploymentuid1"],
        "the answer is unknown, so it is processed again"
    );
    fixture.delete_and_observe(DEPLOYMENT1);
    assert_eq!(fixture.attempt(), asked);
    assert!(fixture.is_there(POD1) && fixture.queue().contains(&"poduid1".to_owned()));
}

#[test]
fn child_to_existing_owner_with_inaccessible_api_version_owner_first() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(DEPLOYMENT1, &[]);
    fixture.create_and_observe(POD1, &[OLD_DEPLOYMENT1]);
    let asked = ["get extensions/v1beta1/Deployment ns1/deployment1"];
    assert_eq!(fixture.attempt(), asked);
    fixture.delete_and_observe(DEPLOYMENT1);
    assert_eq!(fixture.attempt(), asked);
    assert!(fixture.is_there(POD1));
    assert_eq!(fixture.queue(), ["poduid1"]);
}

#[test]
fn child_to_non_existent_owner_with_inaccessible_api_version_inaccessible_parent_first() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD1, &[OLD_DEPLOYMENT1]);
    fixture.create_and_observe(POD2, &[DEPLOYMENT1]);
    assert_eq!(fixture.queue(), ["deploymentuid1", "poduid2"]);
    assert_eq!(fixture.attempt().len(), 2, "both identities are tried");
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    fixture.observe_deleted(POD2);
    assert!(fixture.is_there(POD1));
    assert_eq!(fixture.queue(), ["deploymentuid1"], "its kind may be served later");
}

#[test]
fn child_to_non_existent_owner_with_inaccessible_api_version_accessible_parent_first() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD2, &[DEPLOYMENT1]);
    fixture.create_and_observe(POD1, &[OLD_DEPLOYMENT1]);
    assert_eq!(fixture.queue(), ["deploymentuid1", "poduid1"]);
    assert_eq!(fixture.attempt().len(), 2);
    assert_eq!(fixture.attempt(), ["get extensions/v1beta1/Deployment ns1/deployment1"]);
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    fixture.observe_deleted(POD2);
    assert!(fixture.is_there(POD1));
    let mut queue = fixture.queue();
    queue.sort();
    assert_eq!(queue, ["deploymentuid1", "poduid1"]);
}

#[test]
fn bad_child_to_existing_owner_with_incorrect_api_version_bad_good_absence_parent() {
    let mut fixture = Fixture::new();
    fixture.create(DEPLOYMENT1, &[]);
    fixture.create_and_observe(BAD_POD, &[SECRET_WITH_UID_OF_DEPLOYMENT]);
    fixture.create_and_observe(GOOD_POD, &[DEPLOYMENT1]);
    assert_eq!(fixture.queue(), ["deploymentuid1", "goodpoduid"]);
    let mut asked = fixture.attempt();
    asked.sort();
    assert_eq!(
        asked.first().map(String::as_str),
        Some("get apps/v1/Deployment ns1/deployment1")
    );
    assert_eq!(
        fixture.attempt(),
        ["get apps/v1/Deployment ns1/deployment1"],
        "the good child is kept"
    );
    fixture.observe(DEPLOYMENT1);
    while fixture.is_there(BAD_POD) {
        fixture.attempt();
    }
    fixture.observe_deleted(BAD_POD);
    fixture.collector.run_until_idle(&mut fixture.simulation).unwrap();
    assert!(fixture.is_there(GOOD_POD) && fixture.is_there(DEPLOYMENT1));
    assert_eq!(fixture.edges(), ["goodpoduid -> deploymentuid1"]);
}

#[test]
fn bad_child_to_existing_owner_with_incorrect_api_version_bad_good_parent_absence() {
    let mut fixture = Fixture::new();
    fixture.create(DEPLOYMENT1, &[]);
    fixture.create_and_observe(BAD_POD, &[SECRET_WITH_UID_OF_DEPLOYMENT]);
    fixture.create_and_observe(GOOD_POD, &[DEPLOYMENT1]);
    // A watch reports the parent between the request and its answer.
    fixture.collector.begin();
    fixture.collector.step(&mut fixture.simulation, 0);
    fixture.observe(DEPLOYMENT1);
    while fixture.is_there(BAD_POD) {
        fixture.attempt();
    }
    fixture.observe_deleted(BAD_POD);
    fixture.collector.run_until_idle(&mut fixture.simulation).unwrap();
    assert!(fixture.is_there(GOOD_POD) && fixture.is_there(DEPLOYMENT1));
    assert_eq!(fixture.edges(), ["goodpoduid -> deploymentuid1"]);
    assert!(
        fixture.take_invalid_references().is_empty(),
        "different coordinates send no event"
    );
}

#[test]
fn bad_child_to_existing_owner_with_incorrect_api_version_good_bad_parent() {
    let mut fixture = Fixture::new();
    fixture.create(DEPLOYMENT1, &[]);
    fixture.create_and_observe(GOOD_POD, &[DEPLOYMENT1]);
    fixture.create_and_observe(BAD_POD, &[SECRET_WITH_UID_OF_DEPLOYMENT]);
    assert_eq!(fixture.queue(), ["deploymentuid1", "badpoduid"]);
    fixture.attempt();
    let asked = fixture.attempt();
    assert_eq!(
        asked.last().map(String::as_str),
        Some("delete v1/Pod ns1/badpod Background")
    );
    fixture.observe(DEPLOYMENT1);
    fixture.observe_deleted(BAD_POD);
    fixture.collector.run_until_idle(&mut fixture.simulation).unwrap();
    assert!(fixture.is_there(GOOD_POD) && fixture.is_there(DEPLOYMENT1));
}

#[test]
fn cluster_scoped_bad_child_namespaced_good_child_missing_parent() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(NODE1, &[POD1]);
    fixture.create_and_observe(POD2, &[POD1]);
    assert_eq!(fixture.queue(), ["poduid1", "poduid2"]);
    fixture.attempt();
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    fixture.observe_deleted(POD2);
    fixture.collector.run_until_idle(&mut fixture.simulation).unwrap();
    assert!(
        fixture.is_there(NODE1) && fixture.queue().is_empty(),
        "{:?}",
        fixture.queue()
    );
}

#[test]
fn cluster_scoped_bad_child_namespaced_good_child_late_observed_parent() {
    let mut fixture = Fixture::new();
    fixture.create(POD1, &[]);
    fixture.create_and_observe(NODE1, &[POD1]);
    fixture.create_and_observe(POD2, &[POD1]);
    fixture.attempt();
    assert_eq!(fixture.attempt(), ["get v1/Pod ns1/podname1"], "the good child is kept");
    fixture.observe(POD1);
    assert_eq!(
        fixture.take_invalid_references(),
        ["[v1/Pod, namespace: , name: podname1, uid: poduid1] of nodename"]
    );
    fixture.collector.run_until_idle(&mut fixture.simulation).unwrap();
    assert!(fixture.is_there(NODE1) && fixture.is_there(POD1) && fixture.is_there(POD2));
    assert!(fixture.queue().is_empty(), "{:?}", fixture.queue());
}

#[test]
fn namespaced_good_child_cluster_scoped_bad_child_missing_parent() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD2, &[POD1]);
    fixture.create_and_observe(NODE1, &[POD1]);
    assert_eq!(fixture.queue(), ["poduid1", "nodeuid1"]);
    fixture.attempt();
    assert_eq!(fixture.attempt(), ["get v1/Pod -/podname1"]);
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    fixture.observe_deleted(POD2);
    fixture.collector.run_until_idle(&mut fixture.simulation).unwrap();
    assert!(
        fixture.is_there(NODE1) && fixture.queue().is_empty(),
        "{:?}",
        fixture.queue()
    );
}

#[test]
fn resource_version_conflict_while_processing_object_deletion() {
    let mut fixture = Fixture::new();
    fixture.create_and_observe(POD1, &[]);
    fixture.create_and_observe(ROLE1, &[]);
    fixture.create_and_observe(POD2, &[POD1]);
    fixture.delete_and_observe(POD1);
    // Somebody gives it another owner. No watch has reported that yet.
    fixture.change(POD2, &[ROLE1]);
    assert_eq!(fixture.attempt(), ["delete v1/Pod ns1/podname2 Background"]);
    assert!(
        fixture.is_there(POD2),
        "its version has changed, and the new owner keeps it"
    );
    fixture.observe(POD2);
    fixture.delete_and_observe(ROLE1);
    fixture.change(POD2, &[ROLE1]);
    let asked = fixture.attempt();
    assert_eq!(
        asked,
        [
            "delete v1/Pod ns1/podname2 Background",
            "delete v1/Pod ns1/podname2 Background"
        ],
        "its owners have not changed, so the deletion is retried at once"
    );
    assert!(!fixture.is_there(POD2));
}
