//! Single rules of the graph, one test each.

use std::collections::BTreeSet;

use super::{
    collector::Collector,
    fixtures::{NODES, PODS, monitored, seen},
    simulation::{Simulation, reference},
};
use crate::{
    FollowUps, Graph, Monitor,
    verdict::{OwnerState, PropagationPolicy},
};

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

/// A lagging creator adds a dependent of a waiting owner, whose known dependents are gone.
#[test]
fn dependent_that_turns_up_after_the_end_of_a_foreground_deletion_is_collected() {
    let (mut simulation, mut collector) = simulation();
    let owner = simulation.create(NODES, None, "owner", None, vec![]).unwrap();
    let blocking = || vec![reference(NODES, "owner", &owner, true)];
    simulation.create(PODS, Some("n"), "known", None, blocking());
    collector.run_until_idle(&mut simulation).unwrap();
    let node = (NODES.to_owned(), None, "owner".into());
    simulation.delete(&node, PropagationPolicy::Foreground);
    simulation.delete(&place("known"), PropagationPolicy::Background);
    collector.deliver_events(&simulation, NODES, usize::MAX);
    collector.deliver_events(&simulation, PODS, usize::MAX);
    simulation.create(PODS, Some("n"), "late", None, blocking());
    collector.attempt_all(&mut simulation);
    collector.run_until_idle(&mut simulation).unwrap();
    let writes = simulation.requests.iter().filter(|sent| !sent.starts_with("get"));
    assert_eq!(
        writes.collect::<Vec<_>>(),
        ["finish v1/Node -/owner", "delete v1/Pod n/late Background"]
    );
    assert!(collector.graph.is_empty());
}

#[test]
fn dependent_of_an_orphaned_owner_is_released_when_it_is_found() {
    let (mut simulation, mut collector) = simulation();
    let resources = BTreeSet::from(["pods.".into()]);
    assert!(collector.graph.orphaned_owners_mut().add("gone", &resources));
    let owners = ["gone", "never"].map(|uid| reference(NODES, uid, uid, true));
    simulation.create(PODS, Some("n"), "kept", None, vec![owners[0].clone()]);
    simulation.create(PODS, Some("n"), "deleted", None, owners.into());
    collector.run_until_idle(&mut simulation).unwrap();
    let writes = simulation.requests.iter().filter(|sent| !sent.starts_with("get"));
    let mut writes: Vec<_> = writes.map(String::as_str).collect();
    writes.sort_unstable();
    assert_eq!(
        writes,
        [
            "delete v1/Pod n/deleted Background",
            "release v1/Pod n/deleted",
            "release v1/Pod n/kept"
        ]
    );
    assert!(simulation.objects[&place("kept")].meta.owner_references.is_empty());
}

#[test]
fn orphaned_owner_that_exists_again_is_returned() {
    let (mut simulation, mut collector) = simulation();
    let resources = BTreeSet::from(["pods.".into()]);
    for uid in ["exists", "deleting", "gone"] {
        assert!(collector.graph.orphaned_owners_mut().add(uid, &resources));
    }
    for name in ["exists", "deleting"] {
        simulation.create(PODS, Some("n"), name, Some(name), vec![]);
    }
    simulation.change(&place("deleting"), |object| object.has_foreign_finalizer = true);
    simulation.delete(&place("deleting"), PropagationPolicy::Background);
    collector.run_until_idle(&mut simulation).unwrap();
    let returned = collector.graph.returned_owners();
    assert_eq!(
        returned.iter().map(|owner| &*owner.name).collect::<Vec<_>>(),
        ["exists"]
    );
}

#[test]
fn owner_that_no_watch_has_shown_is_read_once() {
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
fn resource_versions_that_go_back_drop_all_proofs() {
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
    // The deletion of the owner is observed. Then a backup is restored that contains the owner and
    // its dependent.
    let dependent = place("a");
    let owner = (NODES.to_owned(), None, "owner".into());
    simulation.back_up();
    simulation.change(&dependent, |object| object.has_foreign_finalizer = true);
    simulation.delete(&owner, PropagationPolicy::Background);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(
        simulation.objects.len(),
        1,
        "a foreign finalizer holds the dependent while it is deleted"
    );
    assert!(simulation.restore());
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
fn dependent_deleted_while_unwatched_does_not_block_its_owner() {
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
        "it is unknown whether the dependent still blocks the owner"
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

/// Returns a graph in which two monitors have reported an owner and its dependent.
fn owned() -> (Graph, [Monitor; 2], FollowUps) {
    let (mut graph, mut follow_ups, monitors) = monitored([("v1", "Node"), ("v1", "Pod")]);
    graph.observe(monitors[0], &seen("owner", "5", &[]), &mut follow_ups);
    graph.observe(monitors[1], &seen("child", "6", &[(NODES, "owner")]), &mut follow_ups);
    (graph, monitors, FollowUps::default())
}

#[test]
fn list_without_a_usable_resource_version_proves_nothing() {
    for version in [None, Some(""), Some("0"), Some("abc"), Some("4")] {
        let (mut graph, [nodes, _], mut follow_ups) = owned();
        graph.begin_list(nodes);
        graph.complete_list(nodes, version, &mut follow_ups);
        let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
        assert_eq!(child.owners[0].2, None, "{version:?}: a request is needed");
        assert_eq!(follow_ups.attempt.len(), 1, "the owner is processed");
    }
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    graph.begin_list(nodes);
    graph.complete_list(nodes, Some("7"), &mut follow_ups);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, Some(OwnerState::Dangling));
}

#[test]
fn list_with_an_object_without_a_readable_uid_proves_nothing() {
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    graph.begin_list(nodes);
    graph.keep_undecodable(nodes, "");
    graph.complete_list(nodes, Some("7"), &mut follow_ups);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, None);
    // An object whose UID can be decoded keeps its last known state.
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    graph.begin_list(nodes);
    graph.keep_undecodable(nodes, "owner");
    graph.complete_list(nodes, Some("7"), &mut follow_ups);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, Some(OwnerState::Solid));
}

#[test]
fn later_monitor_owns_an_object_that_two_monitors_show() {
    let (mut graph, [nodes, _], mut follow_ups) = owned();
    let again = graph.add_monitor("v2", "Node");
    graph.observe(again, &seen("owner", "5", &[]), &mut follow_ups);
    graph.observe(nodes, &seen("owner", "5", &[]), &mut follow_ups);
    graph.remove_monitor(nodes, &mut follow_ups);
    let owner = graph.uid("owner").and_then(|uid| graph.view(uid)).unwrap();
    assert!(!owner.is_virtual && &*owner.identity.api_version == "v2", "{owner:?}");
}

#[test]
fn full_scan_reports_invalid_references() {
    let (mut graph, [nodes, pods], mut follow_ups) = owned();
    let mut elsewhere = seen("elsewhere", "8", &[(NODES, "inside")]);
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
fn answer_older_than_the_watched_version_is_recognized() {
    let (graph, ..) = owned();
    for (version, expected) in [("4", true), ("5", false), ("6", false), ("", true)] {
        assert_eq!(graph.is_newer_than(&seen("owner", version, &[])), expected, "{version}");
    }
}

#[test]
fn nodes_and_edges_are_small_enough_for_a_million_objects() {
    // These sizes are documented in the architecture. A node also takes its name, its slot in the
    // table, and its references.
    assert_eq!(size_of::<Option<crate::graph::Node>>(), 72);
    assert_eq!(size_of::<Option<crate::graph::Edge>>(), 28);
}
