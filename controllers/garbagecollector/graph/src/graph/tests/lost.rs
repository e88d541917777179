//! Resources that can no longer be read.

use super::fixtures::{self, monitored};
use crate::{FollowUps, Graph, Monitor, PartialObject};

const OWNERS: &str = "v1/Owner";
const THINGS: &str = "v1/Thing";

/// Returns an object that blocks the deletion of its owners.
fn seen(name: &str, owners: &[(&str, &str)]) -> PartialObject {
    let mut seen = fixtures::seen(name, "5", owners);
    for owner in &mut seen.metadata.owner_references {
        owner.blocks = true;
    }
    seen
}

fn list(graph: &mut Graph, monitor: Monitor, objects: &[PartialObject]) -> Vec<String> {
    let mut follow_ups = FollowUps::default();
    graph.begin_list(monitor);
    for object in objects {
        graph.observe(monitor, object, &mut follow_ups);
    }
    graph.complete_list(monitor, Some("6"), &mut follow_ups);
    queued(graph, &follow_ups)
}

fn queued(graph: &Graph, follow_ups: &FollowUps) -> Vec<String> {
    let mut queued: Vec<_> = follow_ups.attempt.iter().map(|uid| graph.text(*uid)).collect();
    queued.sort();
    queued.dedup();
    queued
}

/// Returns a graph with a chain of three objects. The one in the middle belongs to the second
/// monitor.
fn chain() -> (Graph, [Monitor; 2]) {
    let (mut graph, _, monitors) = monitored([("v1", "Owner"), ("v1", "Thing")]);
    let objects = [seen("top", &[]), seen("bottom", &[(THINGS, "middle")])];
    list(&mut graph, monitors[0], &objects);
    list(&mut graph, monitors[1], &[seen("middle", &[(OWNERS, "top")])]);
    (graph, monitors)
}

#[test]
fn lost_object_is_read_when_a_decision_depends_on_it() {
    let (mut graph, [owners, things]) = chain();
    let mut follow_ups = FollowUps::default();
    graph.invalidate_monitor(things, &mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), Vec::<String>::new());
    graph.full_scan(&mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), Vec::<String>::new());
    // A new reference to it says nothing new.
    graph.observe(owners, &seen("new", &[(THINGS, "middle")]), &mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), Vec::<String>::new());
    graph.deleted(owners, &seen("top", &[]), &mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), ["middle"]);
}

#[test]
fn object_that_is_about_to_be_collected_is_read_when_its_resource_is_lost() {
    let deleting = || {
        let mut top = seen("top", &[]);
        top.metadata.deleting = true;
        top.metadata.finalizers.foreground = true;
        top
    };
    for is_gone in [false, true] {
        let (mut graph, [owners, things]) = chain();
        let mut follow_ups = FollowUps::default();
        if is_gone {
            graph.deleted(owners, &seen("top", &[]), &mut follow_ups);
        } else {
            graph.observe(owners, &deleting(), &mut follow_ups);
        }
        let mut follow_ups = FollowUps::default();
        graph.invalidate_monitor(things, &mut follow_ups);
        assert_eq!(queued(&graph, &follow_ups), ["middle"], "{is_gone}");
    }
    // It waits for its own dependents.
    let (mut graph, [_, things]) = chain();
    let mut middle = seen("middle", &[(OWNERS, "top")]);
    middle.metadata.deleting = true;
    middle.metadata.finalizers.foreground = true;
    let mut follow_ups = FollowUps::default();
    graph.observe(things, &middle, &mut follow_ups);
    let mut follow_ups = FollowUps::default();
    graph.invalidate_monitor(things, &mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), ["middle"]);
}

#[test]
fn next_list_of_a_lost_resource_proves_which_objects_are_gone() {
    let (mut graph, [_, things]) = chain();
    graph.invalidate_monitor(things, &mut FollowUps::default());
    let queued = list(&mut graph, things, &[]);
    assert_eq!(queued, ["bottom"], "its owner is gone, which needs no request");
    assert_eq!(graph.statistics().absent, 1);
    // An object that cannot be decoded exists.
    let (mut graph, [_, things]) = chain();
    graph.invalidate_monitor(things, &mut FollowUps::default());
    let mut follow_ups = FollowUps::default();
    graph.begin_list(things);
    graph.keep_undecodable(things, "middle");
    graph.complete_list(things, Some("6"), &mut follow_ups);
    assert_eq!(
        (self::queued(&graph, &follow_ups), graph.statistics().absent),
        (vec!["middle".to_owned()], 0)
    );
}

#[test]
fn first_list_of_a_resource_that_is_watched_again_proves_nothing() {
    let (mut graph, [_, things]) = chain();
    graph.remove_monitor(things, &mut FollowUps::default());
    let again = graph.add_monitor("v1", "Thing");
    assert_eq!(list(&mut graph, again, &[]), ["middle"]);
    assert_eq!(graph.statistics().absent, 0);
}

#[test]
fn owners_of_a_kind_that_is_no_longer_served_are_processed_to_be_counted() {
    let (mut graph, [owners, things]) = chain();
    let mut follow_ups = FollowUps::default();
    assert_eq!(graph.doubt_owners(things, &mut follow_ups), 1);
    graph.remove_monitor(things, &mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), ["middle"]);
    // A replica that becomes the leader later counts them too.
    let mut follow_ups = FollowUps::default();
    graph.full_scan(&mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), ["middle"]);
    // An object without dependents is no owner.
    let mut follow_ups = FollowUps::default();
    assert_eq!(graph.doubt_owners(owners, &mut follow_ups), 1, "only the top");
}

/// The preferred version changed, and could not be listed before the kind was removed.
#[test]
fn owners_that_another_version_has_reported_are_processed_too() {
    let (mut graph, [_, things]) = chain();
    let mut follow_ups = FollowUps::default();
    let preferred = graph.add_monitor("v2", "Thing");
    graph.remove_monitor(things, &mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), Vec::<String>::new());
    assert_eq!(graph.doubt_owners(preferred, &mut follow_ups), 1);
    graph.remove_monitor(preferred, &mut follow_ups);
    assert_eq!(queued(&graph, &follow_ups), ["middle"]);
}
