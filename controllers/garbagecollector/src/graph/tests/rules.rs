//! Single rules of the graph, one after the other.

use super::{
    collector::Collector,
    simulation::{Simulation, reference},
};
use crate::{
    FollowUps, Graph, Monitor, PartialMetadata, PartialObject,
    verdict::{OwnerState, PropagationPolicy},
};

const PODS: &str = "v1/Pod";
const NODES: &str = "v1/Node";

fn place(name: &str) -> (String, Option<Box<str>>, Box<str>) {
    (PODS.to_owned(), Some("n".into()), name.into())
}

fn simulation() -> (Simulation, Collector) {
    let simulation = Simulation::new(&[(PODS, true), (NODES, false)]);
    let mut collector = Collector::default();
    collector.list(&simulation, PODS);
    collector.list(&simulation, NODES);
    (simulation, collector)
}

#[test]
fn an_owner_whose_deletion_was_seen_is_not_asked_for() {
    let (mut simulation, mut collector) = simulation();
    let owner = simulation.create(PODS, Some("n"), "owner", None, vec![]).unwrap();
    for name in ["a", "b"] {
        simulation.create(
            PODS,
            Some("n"),
            name,
            None,
            vec![reference(PODS, "owner", &owner, false)],
        );
    }
    collector.run_until_idle(&mut simulation).unwrap();
    simulation.delete(&place("owner"), PropagationPolicy::Background);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(
        simulation.requests,
        ["delete v1/Pod n/b Background", "delete v1/Pod n/a Background"]
    );
    assert!(
        simulation.objects.is_empty() && collector.graph.is_empty(),
        "{simulation:?}"
    );
}

#[test]
fn an_owner_that_was_never_seen_is_asked_for_once() {
    let (mut simulation, mut collector) = simulation();
    for name in ["a", "b", "c"] {
        simulation.create(
            PODS,
            Some("n"),
            name,
            None,
            vec![reference(NODES, "owner", "gone", false)],
        );
    }
    collector.run_until_idle(&mut simulation).unwrap();
    let asked = simulation.requests.iter().filter(|asked| asked.starts_with("get"));
    assert_eq!(asked.collect::<Vec<_>>(), ["get v1/Node n/owner"]);
    assert!(simulation.objects.is_empty(), "{simulation:?}");
}

#[test]
fn a_list_that_lacks_an_owner_is_a_proof() {
    let (mut simulation, mut collector) = simulation();
    let owner = simulation.create(NODES, None, "owner", None, vec![]).unwrap();
    simulation.create(
        PODS,
        Some("n"),
        "a",
        None,
        vec![reference(NODES, "owner", &owner, false)],
    );
    collector.run_until_idle(&mut simulation).unwrap();
    simulation.delete(&(NODES.to_owned(), None, "owner".into()), PropagationPolicy::Background);
    collector.list(&simulation, NODES);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.requests, ["delete v1/Pod n/a Background"]);
}

#[test]
fn versions_that_go_back_prove_nothing() {
    let (mut simulation, mut collector) = simulation();
    let owner = simulation.create(NODES, None, "owner", None, vec![]).unwrap();
    simulation.create(
        PODS,
        Some("n"),
        "a",
        None,
        vec![reference(NODES, "owner", &owner, false)],
    );
    collector.run_until_idle(&mut simulation).unwrap();
    // The deletion of the owner was seen, and then a backup is restored in which it is, and its dependent too.
    let dependent = place("a");
    let owner = (NODES.to_owned(), None, "owner".into());
    let before = simulation.objects.clone();
    simulation.change(&dependent, |object| object.has_foreign_finalizer = true);
    simulation.delete(&owner, PropagationPolicy::Background);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.objects.len(), 1, "the dependent is held while it is deleted");
    simulation.restore_backup(2, before);
    simulation.requests.clear();
    collector.list(&simulation, PODS);
    collector.run_until_idle(&mut simulation).unwrap();
    assert!(simulation.violations.is_empty(), "{:?}", simulation.violations);
    assert!(
        simulation.requests.iter().all(|asked| asked == "get v1/Node n/owner"),
        "{:?}",
        simulation.requests
    );
    assert!(!simulation.requests.is_empty());
    collector.list(&simulation, NODES);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.objects.len(), 2, "{:?}", simulation.requests);
}

#[test]
fn a_resource_that_nobody_watches_any_more_proves_nothing() {
    let (mut simulation, mut collector) = simulation();
    let owner = simulation.create(NODES, None, "owner", None, vec![]).unwrap();
    simulation.create(
        PODS,
        Some("n"),
        "a",
        None,
        vec![reference(NODES, "owner", &owner, false)],
    );
    collector.run_until_idle(&mut simulation).unwrap();
    simulation.serve(NODES, false);
    collector.stop_watching(NODES);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.objects.len(), 2, "{simulation:?}");
    simulation.serve(NODES, true);
    collector.list(&simulation, NODES);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.objects.len(), 2, "{simulation:?}");
}

#[test]
fn a_circle_of_objects_that_wait_for_each_other_is_broken() {
    let (mut simulation, mut collector) = simulation();
    let mut uids = Vec::new();
    for name in ["a", "b", "c"] {
        uids.push(simulation.create(PODS, Some("n"), name, None, vec![]).unwrap());
    }
    for (name, owner) in [("a", 2), ("b", 0), ("c", 1)] {
        let to = ["a", "b", "c"][owner];
        let uid = uids[owner].clone();
        simulation.change(&place(name), |object| {
            object.meta.owner_references = vec![reference(PODS, to, &uid, true)];
        });
    }
    collector.run_until_idle(&mut simulation).unwrap();
    simulation.delete(&place("a"), PropagationPolicy::Foreground);
    collector.run_until_idle(&mut simulation).unwrap();
    assert!(simulation.objects.is_empty(), "{:?}", simulation.objects);
}

#[test]
fn an_object_that_owns_itself_is_as_good_as_any() {
    let (mut simulation, mut collector) = simulation();
    let uid = simulation.create(PODS, Some("n"), "a", None, vec![]).unwrap();
    simulation.change(&place("a"), |object| {
        object.meta.owner_references = vec![reference(PODS, "a", &uid, true), reference(PODS, "a", &uid, false)];
    });
    collector.run_until_idle(&mut simulation).unwrap();
    simulation.delete(&place("a"), PropagationPolicy::Background);
    collector.run_until_idle(&mut simulation).unwrap();
    assert!(simulation.objects.is_empty() && collector.graph.is_empty());
}

#[test]
fn orphans_stay() {
    let (mut simulation, mut collector) = simulation();
    let owner = simulation.create(PODS, Some("n"), "owner", None, vec![]).unwrap();
    for name in ["a", "b"] {
        simulation.create(
            PODS,
            Some("n"),
            name,
            None,
            vec![reference(PODS, "owner", &owner, true)],
        );
    }
    collector.run_until_idle(&mut simulation).unwrap();
    simulation.delete(&place("owner"), PropagationPolicy::Orphan);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.objects.len(), 2);
    assert!(
        simulation
            .objects
            .values()
            .all(|object| object.meta.owner_references.is_empty())
    );
}

#[test]
fn what_was_deleted_while_nobody_watched_it_blocks_nobody() {
    const LATE: &str = "x/v1/Late";
    let mut simulation = Simulation::new(&[(PODS, true), (LATE, true)]);
    let mut collector = Collector::default();
    collector.list(&simulation, PODS);
    collector.list(&simulation, LATE);
    let owner = simulation.create(PODS, Some("n"), "owner", None, vec![]).unwrap();
    simulation.create(LATE, Some("n"), "a", None, vec![reference(PODS, "owner", &owner, true)]);
    collector.run_until_idle(&mut simulation).unwrap();
    simulation.serve(LATE, false);
    collector.stop_watching(LATE);
    simulation.delete(
        &(LATE.to_owned(), Some("n".into()), "a".into()),
        PropagationPolicy::Background,
    );
    simulation.delete(&place("owner"), PropagationPolicy::Foreground);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(
        simulation.objects.len(),
        1,
        "nobody can tell whether it still blocks the owner"
    );
    simulation.serve(LATE, true);
    collector.list(&simulation, LATE);
    collector.run_until_idle(&mut simulation).unwrap();
    assert!(
        simulation.objects.is_empty() && collector.graph.is_empty(),
        "{:?} {:?}",
        simulation.objects,
        collector.graph.snapshot(&[])
    );
}

/// A node that is owned by one that a watch has shown, of two monitors.
fn owned() -> (Graph, [Monitor; 2], FollowUps) {
    let mut graph = Graph::default();
    let monitors = [("v1", "Node"), ("v1", "Pod")].map(|(version, kind)| graph.add_monitor(version, kind));
    let mut follow_ups = FollowUps::default();
    graph.observe(monitors[0], &seen("owner", "5", &[]), &mut follow_ups);
    graph.observe(monitors[1], &seen("child", "6", &["owner"]), &mut follow_ups);
    (graph, monitors, FollowUps::default())
}

fn seen(name: &str, version: &str, owners: &[&str]) -> PartialObject {
    PartialObject {
        metadata: PartialMetadata {
            name: name.into(),
            uid: name.into(),
            resource_version: version.into(),
            owner_references: owners
                .iter()
                .map(|owner| reference(NODES, owner, owner, false))
                .collect(),
            ..PartialMetadata::default()
        },
    }
}

#[test]
fn a_list_that_does_not_say_how_old_it_is_proves_nothing() {
    for version in [None, Some(""), Some("0"), Some("abc"), Some("4")] {
        let (mut graph, [nodes, _], mut follow_ups) = owned();
        graph.begin_list(nodes);
        graph.complete_list(nodes, version, &mut follow_ups);
        let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
        assert_eq!(child.owners[0].2, None, "{version:?}: it has to be asked");
        assert_eq!(follow_ups.attempt.len(), 1, "the owner");
    }
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    graph.begin_list(nodes);
    graph.complete_list(nodes, Some("7"), &mut follow_ups);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, Some(OwnerState::Dangling));
}

#[test]
fn a_list_with_something_that_cannot_be_read_at_all_proves_nothing() {
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    graph.begin_list(nodes);
    graph.keep_undecodable(nodes, "");
    graph.complete_list(nodes, Some("7"), &mut follow_ups);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, None);
    // What can be read as far as its UID is kept as it was.
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    graph.begin_list(nodes);
    graph.keep_undecodable(nodes, "owner");
    graph.complete_list(nodes, Some("7"), &mut follow_ups);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, Some(OwnerState::Solid));
}

#[test]
fn of_two_monitors_that_show_an_object_the_later_one_has_it() {
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    let again = graph.add_monitor("v2", "Node");
    graph.observe(again, &seen("owner", "5", &[]), &mut follow_ups);
    graph.observe(nodes, &seen("owner", "5", &[]), &mut follow_ups);
    graph.remove_monitor(nodes, &mut follow_ups);
    let owner = graph.uid("owner").and_then(|uid| graph.view(uid)).unwrap();
    assert!(!owner.is_virtual && &*owner.identity.api_version == "v2", "{owner:?}");
}

#[test]
fn whoever_comes_to_act_hears_of_references_that_cannot_be() {
    let (mut graph, [nodes, pods], mut follow_ups) = owned();
    let mut elsewhere = seen("elsewhere", "8", &["inside"]);
    elsewhere.metadata.namespace = Some("n".into());
    let mut inside = seen("inside", "9", &[]);
    inside.metadata.namespace = Some("m".into());
    graph.observe(nodes, &inside, &mut follow_ups);
    graph.observe(pods, &elsewhere, &mut follow_ups);
    let mut follow_ups = FollowUps::default();
    graph.full_scan(&mut follow_ups);
    assert_eq!(follow_ups.invalid.len(), 1);
    assert_eq!(&*follow_ups.invalid[0].dependent.name, "elsewhere");
}

#[test]
fn an_answer_that_is_older_than_what_a_watch_has_shown_is_known_as_such() {
    let (graph, ..) = owned();
    for (version, expected) in [("4", true), ("5", false), ("6", false), ("", true)] {
        assert_eq!(graph.is_newer_than(&seen("owner", version, &[])), expected, "{version}");
    }
}

#[test]
fn a_million_nodes_fit_because_each_is_small() {
    // As the architecture says. What else a node costs is its name, a place in the table, and its references.
    assert_eq!(size_of::<Option<crate::graph::Node>>(), 72);
    assert_eq!(size_of::<Option<crate::graph::Edge>>(), 28);
}
