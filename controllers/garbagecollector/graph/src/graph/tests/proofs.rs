//! How long a proof of absence is used: etcd may have been restored from a backup.

use super::{
    collector::Collector,
    fixtures::{NODES, PODS, monitored, seen},
    simulation::{Simulation, reference},
};
use crate::{Attempt, AttemptStep, FollowUps, Graph, Identity, Intent, Monitor, verdict::PropagationPolicy};

/// Returns a cluster whose owner was deleted, which the collector has observed. It has not
/// processed the dependents yet. The backup contains the owner.
fn deleted_owner() -> (Simulation, Collector, Simulation) {
    let mut simulation = Simulation::new(&[(PODS, true), (NODES, false)]);
    let owner = simulation.create(NODES, None, "owner", None, vec![]).unwrap();
    for name in ["a", "b"] {
        let owners = vec![reference(NODES, "owner", &owner, false)];
        simulation.create(PODS, Some("n"), name, None, owners);
    }
    let mut collector = Collector::default();
    collector.list(&simulation, PODS);
    collector.list(&simulation, NODES);
    collector.run_until_idle(&mut simulation).unwrap();
    let backup = simulation.clone();
    let place = (NODES.to_owned(), None, "owner".into());
    simulation.delete(&place, PropagationPolicy::Background);
    collector.deliver_events(&simulation, NODES, 1);
    simulation.requests.clear();
    (simulation, collector, backup)
}

#[test]
fn proof_is_used_while_the_watch_is_open() {
    let (mut simulation, mut collector, _) = deleted_owner();
    collector.attempt_all(&mut simulation);
    assert_eq!(
        simulation.requests,
        ["delete v1/Pod n/b Background", "delete v1/Pod n/a Background"]
    );
}

#[test]
fn proof_is_not_used_once_the_watch_has_ended() {
    for is_resumed in [false, true] {
        let (_, mut collector, mut restored) = deleted_owner();
        if is_resumed {
            collector.interrupt(NODES);
        } else {
            collector.disconnect(NODES);
        }
        collector.attempt_all(&mut restored);
        assert_eq!(restored.requests, ["get v1/Node n/owner"; 2], "resumed: {is_resumed}");
        assert_eq!((restored.objects.len(), restored.violations.len()), (3, 0));
    }
}

#[test]
fn owner_is_read_once_after_its_watch_has_resumed() {
    let (mut simulation, mut collector, _) = deleted_owner();
    collector.interrupt(NODES);
    collector.attempt_all(&mut simulation);
    let (reads, deletions): (Vec<_>, Vec<_>) = simulation.requests.iter().partition(|sent| sent.starts_with("get"));
    assert_eq!((reads.len(), simulation.objects.len()), (1, 0), "{deletions:?}");
}

/// Returns a graph with a kind of the main store and one of an aggregated API.
fn nodes_and_flunders() -> (Graph, FollowUps, [Monitor; 2]) {
    let (mut graph, follow_ups, monitors) = monitored([("v1", "Node"), ("wardle.example.com/v1", "Flunder")]);
    graph.set_separate(monitors[1], true);
    (graph, follow_ups, monitors)
}

/// An aggregated apiserver numbers its objects on its own.
#[test]
fn decreased_versions_of_an_aggregated_api_concern_only_themselves() {
    const FLUNDERS: &str = "wardle.example.com/v1/Flunder";
    let build = || {
        let (mut graph, mut follow_ups, [nodes, flunders]) = nodes_and_flunders();
        for (monitor, name, version) in [(nodes, "node", "500"), (flunders, "flunder", "5")] {
            graph.begin_list(monitor);
            graph.observe(monitor, &seen(name, version, &[]), &mut follow_ups);
            graph.complete_list(monitor, Some(version), &mut follow_ups);
        }
        let dependents = [("of-node", (NODES, "node")), ("of-flunder", (FLUNDERS, "flunder"))];
        for (name, owner) in dependents {
            graph.observe(nodes, &seen(name, "501", &[owner]), &mut follow_ups);
        }
        graph.deleted(nodes, &seen("node", "502", &[]), &mut follow_ups);
        graph.deleted(flunders, &seen("flunder", "6", &[]), &mut follow_ups);
        assert_eq!(graph.statistics().absent, 2);
        (graph, nodes, flunders)
    };
    let list = |graph: &mut Graph, monitor, version: &str| {
        graph.begin_list(monitor);
        let has_decreased = graph.complete_list(monitor, Some(version), &mut FollowUps::default());
        (has_decreased, graph.statistics().absent)
    };
    let (mut graph, _, flunders) = build();
    assert_eq!(list(&mut graph, flunders, "2"), (true, 1));
    let (mut graph, nodes, _) = build();
    assert_eq!(list(&mut graph, nodes, "400"), (true, 1));
    let (mut graph, nodes, flunders) = build();
    assert!(
        graph.go_back(Some(nodes), &mut FollowUps::default()),
        "it is the main store"
    );
    assert_eq!(graph.statistics().absent, 1);
    assert!(!graph.go_back(Some(flunders), &mut FollowUps::default()));
    assert_eq!(graph.statistics().absent, 0);
    // The lists that follow are not older than anything.
    assert_eq!(list(&mut graph, nodes, "400"), (false, 0));
}

/// A reference may name another version than the one that is watched.
#[test]
fn proof_by_another_version_rests_on_the_watch_of_the_kind() {
    const WATCHED: &str = "wardle.example.com/v1/Flunder";
    const OTHER: &str = "wardle.example.com/v1beta1/Flunder";
    let (mut graph, mut follow_ups, [nodes, flunders]) = nodes_and_flunders();
    for monitor in [nodes, flunders] {
        graph.begin_list(monitor);
        graph.complete_list(monitor, Some("5"), &mut follow_ups);
    }
    let owner = reference(OTHER, "owner", "owner", false);
    graph.observe(nodes, &seen("dependent", "6", &[(OTHER, "owner")]), &mut follow_ups);
    let uid = graph.uid("owner").unwrap();
    let prove = |graph: &mut Graph| {
        graph.mark_absent(&Identity::of_owner(&owner, None), &mut FollowUps::default());
        assert!(graph.absent.contains(uid, &owner, None));
    };
    prove(&mut graph);
    assert!(graph.is_proof_current(&owner));
    graph.disconnect(flunders);
    assert!(!graph.is_proof_current(&owner), "the watch of the kind has ended");
    graph.resume(flunders);
    assert!(
        !graph.absent.contains(uid, &owner, None),
        "the watch of the kind has resumed"
    );
    prove(&mut graph);
    graph.go_back(Some(flunders), &mut follow_ups);
    assert!(!graph.absent.contains(uid, &owner, None), "its versions have decreased");
    prove(&mut graph);
    graph.observe(flunders, &seen("owner", "7", &[(WATCHED, "none")]), &mut follow_ups);
    assert!(
        !graph.absent.contains(uid, &owner, None),
        "the watch has reported the owner"
    );
    // Nothing shows a restore of the store of a kind that is not watched.
    let unwatched = reference("wardle.example.com/v1/Fischer", "owner", "owner", false);
    assert!(!graph.is_proof_current(&unwatched));
    assert!(graph.is_proof_current(&reference("v1/Secret", "owner", "owner", false)));
}

/// The version in the reference need not be served.
#[test]
fn observed_deletion_proves_the_owner_absent_in_every_version() {
    let (mut graph, mut follow_ups, [jobs]) = monitored([("batch/v1", "Job")]);
    graph.begin_list(jobs);
    graph.complete_list(jobs, Some("5"), &mut follow_ups);
    let dependent = |name: &str| seen(name, "6", &[("batch/v1beta1/Job", "owner")]);
    for is_known in [true, false] {
        if is_known {
            graph.observe(jobs, &seen("owner", "6", &[]), &mut follow_ups);
        }
        graph.observe(jobs, &dependent("dependent"), &mut follow_ups);
        let mut follow_ups = FollowUps::default();
        graph.deleted(jobs, &seen("owner", "7", &[]), &mut follow_ups);
        let uid = graph.uid("dependent").unwrap();
        assert!(follow_ups.attempt.contains(&uid), "known: {is_known}");
        let step = graph.step(&Attempt::new(uid));
        assert!(
            matches!(step, AttemptStep::Apply(Intent::Delete { .. })),
            "known: {is_known}: {step:?}"
        );
        graph.deleted(jobs, &dependent("dependent"), &mut follow_ups);
    }
}

/// A read by the version in the reference is older than what the watch has reported.
#[test]
fn read_in_another_version_proves_nothing_about_an_object_that_a_watch_reports() {
    let (mut graph, mut follow_ups, [jobs]) = monitored([("batch/v1", "Job")]);
    graph.observe(jobs, &seen("owner", "6", &[]), &mut follow_ups);
    let owner = ("batch/v1beta1/Job", "owner");
    graph.observe(jobs, &seen("dependent", "6", &[owner]), &mut follow_ups);
    let owner = Identity::of_owner(&reference("batch/v1beta1/Job", "owner", "owner", false), None);
    graph.mark_absent(&owner, &mut follow_ups);
    assert_eq!(graph.statistics().absent, 0);
}

#[test]
fn owner_is_unproven_while_objects_refer_to_it_and_nothing_is_known_about_it() {
    let (mut graph, mut follow_ups, [jobs]) = monitored([("batch/v1", "Job")]);
    let owner = |kind: &str| Identity::of_owner(&reference(kind, "owner", "owner", false), None);
    let of_group = owner("batch/v2/Job");
    assert!(!graph.is_unproven_owner(&of_group));
    let owners = [("batch/v1beta1/Job", "owner"), ("example.com/v1/Gone", "owner")];
    graph.observe(jobs, &seen("dependent", "6", &owners), &mut follow_ups);
    assert!(graph.is_unproven_owner(&of_group) && graph.is_unproven_owner(&owner("example.com/v1/Gone")));
    assert!(!graph.is_unproven_owner(&owner("example.com/v1/Other")));
    graph.observe(jobs, &seen("owner", "7", &[]), &mut follow_ups);
    assert!(!graph.is_unproven_owner(&of_group), "it exists");
    graph.deleted(jobs, &seen("owner", "8", &[]), &mut follow_ups);
    assert!(!graph.is_unproven_owner(&of_group), "it is absent");
    assert!(graph.is_unproven_owner(&owner("example.com/v1/Gone")));
    graph.observe(jobs, &seen("dependent", "9", &[]), &mut follow_ups);
    assert!(
        !graph.is_unproven_owner(&owner("example.com/v1/Gone")),
        "nothing refers to it"
    );
}

/// The kind of the owner is not served any longer, so no read can prove its absence again.
#[test]
fn observed_deletion_stays_a_proof_after_the_kind_of_the_owner_has_gone() {
    for is_observed in [true, false] {
        let (mut graph, mut follow_ups, [nodes, things]) = monitored([("v1", "Node"), ("example.com/v1", "Thing")]);
        for monitor in [nodes, things] {
            graph.begin_list(monitor);
            graph.complete_list(monitor, Some("5"), &mut follow_ups);
        }
        let owner = reference("example.com/v1/Thing", "owner", "owner", false);
        graph.observe(
            nodes,
            &seen("dependent", "6", &[("example.com/v1/Thing", "owner")]),
            &mut follow_ups,
        );
        let uid = graph.uid("owner").unwrap();
        if is_observed {
            graph.deleted(things, &seen("owner", "7", &[]), &mut follow_ups);
        } else {
            graph.mark_absent(&Identity::of_owner(&owner, None), &mut follow_ups);
        }
        graph.doubt_owners(things, &mut follow_ups);
        graph.remove_monitor(things, &mut follow_ups);
        assert!(graph.absent.contains(uid, &owner, None) && graph.is_proof_current(&owner));
        graph.disconnect(nodes);
        graph.resume(nodes);
        assert_eq!(graph.absent.contains(uid, &owner, None), is_observed);
        assert!(!graph.is_proof_current(&owner), "etcd may have been restored");
        graph.confirm_versions(nodes);
        assert!(graph.is_proof_current(&owner));
        graph.go_back(Some(nodes), &mut follow_ups);
        assert!(!graph.absent.contains(uid, &owner, None), "etcd was restored");
    }
}

/// Nothing would show that the store of an aggregated API was restored.
#[test]
fn proofs_about_a_kind_with_a_store_of_its_own_end_with_its_watch() {
    let (mut graph, mut follow_ups, [nodes, flunders]) = nodes_and_flunders();
    let owner = ("wardle.example.com/v1/Flunder", "owner");
    graph.observe(nodes, &seen("dependent", "6", &[owner]), &mut follow_ups);
    graph.deleted(flunders, &seen("owner", "7", &[]), &mut follow_ups);
    assert_eq!(graph.statistics().absent, 1);
    graph.remove_monitor(flunders, &mut follow_ups);
    assert_eq!(graph.statistics().absent, 0);
}

/// After a restore, the versions of nodes that were not listed again say nothing about the store.
#[test]
fn versions_of_a_former_store_are_not_compared() {
    let (mut graph, mut follow_ups, [nodes]) = monitored([("v1", "Node")]);
    let list = |graph: &mut Graph, names: &[&str], version: &str| {
        graph.begin_list(nodes);
        for name in names {
            graph.observe(nodes, &seen(name, version, &[]), &mut FollowUps::default());
        }
    };
    list(&mut graph, &["a", "b"], "500");
    graph.complete_list(nodes, Some("500"), &mut follow_ups);
    assert_eq!(graph.observed_version("b"), Some((nodes, 500)));
    graph.go_back(Some(nodes), &mut follow_ups);
    list(&mut graph, &["a"], "400");
    assert!(graph.is_outdated(nodes));
    assert_eq!(graph.observed_version("b"), None);
    graph.observe(nodes, &seen("b", "400", &[]), &mut follow_ups);
    graph.complete_list(nodes, Some("400"), &mut follow_ups);
    assert!(!graph.is_outdated(nodes));
    assert_eq!(graph.observed_version("b"), Some((nodes, 400)));
}

/// A cluster-scoped object with a namespaced owner is never deleted for it.
#[test]
fn reference_across_scopes_does_not_block_a_foreground_deletion() {
    const POD: &str = "v1/Pod";
    let mut owner = seen("owner", "1", &[]);
    owner.metadata.namespace = Some("n".into());
    owner.metadata.deleting = true;
    owner.metadata.finalizers.foreground = true;
    let mut dependent = seen("dependent", "1", &[]);
    dependent.metadata.owner_references = [reference(POD, "owner", "owner", true)].into();
    for is_owner_first in [false, true] {
        let (mut graph, mut follow_ups, [pods, nodes]) = monitored([("v1", "Pod"), ("v1", "Node")]);
        if is_owner_first {
            graph.observe(pods, &owner, &mut follow_ups);
        }
        graph.observe(nodes, &dependent, &mut follow_ups);
        follow_ups = FollowUps::default();
        if is_owner_first {
            graph.observe(nodes, &dependent, &mut follow_ups);
        } else {
            graph.observe(pods, &owner, &mut follow_ups);
        }
        let id = graph.find(graph.uid("owner").unwrap()).unwrap();
        assert_eq!(graph.nodes[id].blocking, 0, "owner first: {is_owner_first}");
        assert!(is_owner_first || follow_ups.attempt.contains(&graph.uid("owner").unwrap()));
        graph.observe(nodes, &seen("dependent", "2", &[]), &mut follow_ups);
        assert_eq!(graph.nodes[id].blocking, 0);
    }
}
