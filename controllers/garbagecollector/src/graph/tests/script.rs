//! Single rules of the graph, one after the other.

use super::{
    collector::Collector,
    world::{World, reference},
};
use crate::{
    Effects, Graph, Meta, Monitor, Seen,
    verdict::{Policy, Standing},
};

const PODS: &str = "v1/Pod";
const NODES: &str = "v1/Node";

fn place(name: &str) -> (String, Option<Box<str>>, Box<str>) {
    (PODS.to_owned(), Some("n".into()), name.into())
}

fn world() -> (World, Collector) {
    let world = World::new(&[(PODS, true), (NODES, false)]);
    let mut collector = Collector::default();
    collector.list(&world, PODS);
    collector.list(&world, NODES);
    (world, collector)
}

#[test]
fn an_owner_whose_deletion_was_seen_is_not_asked_for() {
    let (mut world, mut collector) = world();
    let owner = world.create(PODS, Some("n"), "owner", None, vec![]).unwrap();
    for name in ["a", "b"] {
        world.create(
            PODS,
            Some("n"),
            name,
            None,
            vec![reference(PODS, "owner", &owner, false)],
        );
    }
    collector.settle(&mut world).unwrap();
    world.delete(&place("owner"), Policy::Background);
    collector.settle(&mut world).unwrap();
    assert_eq!(
        world.asked,
        ["delete v1/Pod n/b Background", "delete v1/Pod n/a Background"]
    );
    assert!(world.objects.is_empty() && collector.graph.is_empty(), "{world:?}");
}

#[test]
fn an_owner_that_was_never_seen_is_asked_for_once() {
    let (mut world, mut collector) = world();
    for name in ["a", "b", "c"] {
        world.create(
            PODS,
            Some("n"),
            name,
            None,
            vec![reference(NODES, "owner", "gone", false)],
        );
    }
    collector.settle(&mut world).unwrap();
    let asked = world.asked.iter().filter(|asked| asked.starts_with("get"));
    assert_eq!(asked.collect::<Vec<_>>(), ["get v1/Node n/owner"]);
    assert!(world.objects.is_empty(), "{world:?}");
}

#[test]
fn a_list_that_lacks_an_owner_is_a_proof() {
    let (mut world, mut collector) = world();
    let owner = world.create(NODES, None, "owner", None, vec![]).unwrap();
    world.create(
        PODS,
        Some("n"),
        "a",
        None,
        vec![reference(NODES, "owner", &owner, false)],
    );
    collector.settle(&mut world).unwrap();
    world.delete(&(NODES.to_owned(), None, "owner".into()), Policy::Background);
    collector.list(&world, NODES);
    collector.settle(&mut world).unwrap();
    assert_eq!(world.asked, ["delete v1/Pod n/a Background"]);
}

#[test]
fn versions_that_go_back_prove_nothing() {
    let (mut world, mut collector) = world();
    let owner = world.create(NODES, None, "owner", None, vec![]).unwrap();
    world.create(
        PODS,
        Some("n"),
        "a",
        None,
        vec![reference(NODES, "owner", &owner, false)],
    );
    collector.settle(&mut world).unwrap();
    // The deletion of the owner was seen, and then a backup is restored in which it is, and its dependent too.
    let dependent = place("a");
    let owner = (NODES.to_owned(), None, "owner".into());
    let before = world.objects.clone();
    world.change(&dependent, |object| object.held = true);
    world.delete(&owner, Policy::Background);
    collector.settle(&mut world).unwrap();
    assert_eq!(world.objects.len(), 1, "the dependent is held while it is deleted");
    world.go_back(2, before);
    world.asked.clear();
    collector.list(&world, PODS);
    collector.settle(&mut world).unwrap();
    assert!(world.crimes.is_empty(), "{:?}", world.crimes);
    assert!(
        world.asked.iter().all(|asked| asked == "get v1/Node n/owner"),
        "{:?}",
        world.asked
    );
    assert!(!world.asked.is_empty());
    collector.list(&world, NODES);
    collector.settle(&mut world).unwrap();
    assert_eq!(world.objects.len(), 2, "{:?}", world.asked);
}

#[test]
fn a_resource_that_nobody_watches_any_more_proves_nothing() {
    let (mut world, mut collector) = world();
    let owner = world.create(NODES, None, "owner", None, vec![]).unwrap();
    world.create(
        PODS,
        Some("n"),
        "a",
        None,
        vec![reference(NODES, "owner", &owner, false)],
    );
    collector.settle(&mut world).unwrap();
    world.serve(NODES, false);
    collector.leave(NODES);
    collector.settle(&mut world).unwrap();
    assert_eq!(world.objects.len(), 2, "{world:?}");
    world.serve(NODES, true);
    collector.list(&world, NODES);
    collector.settle(&mut world).unwrap();
    assert_eq!(world.objects.len(), 2, "{world:?}");
}

#[test]
fn a_circle_of_objects_that_wait_for_each_other_is_broken() {
    let (mut world, mut collector) = world();
    let mut uids = Vec::new();
    for name in ["a", "b", "c"] {
        uids.push(world.create(PODS, Some("n"), name, None, vec![]).unwrap());
    }
    for (name, owner) in [("a", 2), ("b", 0), ("c", 1)] {
        let to = ["a", "b", "c"][owner];
        let uid = uids[owner].clone();
        world.change(&place(name), |object| {
            object.meta.owner_references = vec![reference(PODS, to, &uid, true)];
        });
    }
    collector.settle(&mut world).unwrap();
    world.delete(&place("a"), Policy::Foreground);
    collector.settle(&mut world).unwrap();
    assert!(world.objects.is_empty(), "{:?}", world.objects);
}

#[test]
fn an_object_that_owns_itself_is_as_good_as_any() {
    let (mut world, mut collector) = world();
    let uid = world.create(PODS, Some("n"), "a", None, vec![]).unwrap();
    world.change(&place("a"), |object| {
        object.meta.owner_references = vec![reference(PODS, "a", &uid, true), reference(PODS, "a", &uid, false)];
    });
    collector.settle(&mut world).unwrap();
    world.delete(&place("a"), Policy::Background);
    collector.settle(&mut world).unwrap();
    assert!(world.objects.is_empty() && collector.graph.is_empty());
}

#[test]
fn orphans_stay() {
    let (mut world, mut collector) = world();
    let owner = world.create(PODS, Some("n"), "owner", None, vec![]).unwrap();
    for name in ["a", "b"] {
        world.create(
            PODS,
            Some("n"),
            name,
            None,
            vec![reference(PODS, "owner", &owner, true)],
        );
    }
    collector.settle(&mut world).unwrap();
    world.delete(&place("owner"), Policy::Orphan);
    collector.settle(&mut world).unwrap();
    assert_eq!(world.objects.len(), 2);
    assert!(
        world
            .objects
            .values()
            .all(|object| object.meta.owner_references.is_empty())
    );
}

#[test]
fn what_was_deleted_while_nobody_watched_it_blocks_nobody() {
    const LATE: &str = "x/v1/Late";
    let mut world = World::new(&[(PODS, true), (LATE, true)]);
    let mut collector = Collector::default();
    collector.list(&world, PODS);
    collector.list(&world, LATE);
    let owner = world.create(PODS, Some("n"), "owner", None, vec![]).unwrap();
    world.create(LATE, Some("n"), "a", None, vec![reference(PODS, "owner", &owner, true)]);
    collector.settle(&mut world).unwrap();
    world.serve(LATE, false);
    collector.leave(LATE);
    world.delete(&(LATE.to_owned(), Some("n".into()), "a".into()), Policy::Background);
    world.delete(&place("owner"), Policy::Foreground);
    collector.settle(&mut world).unwrap();
    assert_eq!(
        world.objects.len(),
        1,
        "nobody can tell whether it still blocks the owner"
    );
    world.serve(LATE, true);
    collector.list(&world, LATE);
    collector.settle(&mut world).unwrap();
    assert!(
        world.objects.is_empty() && collector.graph.is_empty(),
        "{:?} {:?}",
        world.objects,
        collector.graph.shape(&[])
    );
}

/// A node that is owned by one that a watch has shown, of two monitors.
fn owned() -> (Graph, [Monitor; 2], Effects) {
    let mut graph = Graph::default();
    let monitors = [("v1", "Node"), ("v1", "Pod")].map(|(version, kind)| graph.add_monitor(version, kind));
    let mut effects = Effects::default();
    graph.observe(monitors[0], &seen("owner", "5", &[]), &mut effects);
    graph.observe(monitors[1], &seen("child", "6", &["owner"]), &mut effects);
    (graph, monitors, Effects::default())
}

fn seen(name: &str, version: &str, owners: &[&str]) -> Seen {
    Seen {
        metadata: Meta {
            name: name.into(),
            uid: name.into(),
            resource_version: version.into(),
            owner_references: owners
                .iter()
                .map(|owner| reference(NODES, owner, owner, false))
                .collect(),
            ..Meta::default()
        },
    }
}

#[test]
fn a_list_that_does_not_say_how_old_it_is_proves_nothing() {
    for version in [None, Some(""), Some("0"), Some("abc"), Some("4")] {
        let (mut graph, [nodes, _], mut effects) = owned();
        graph.relisting(nodes);
        graph.complete(nodes, version, &mut effects);
        let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
        assert_eq!(child.owners[0].2, None, "{version:?}: it has to be asked");
        assert_eq!(effects.attempt.len(), 1, "the owner");
    }
    let (mut graph, [nodes, _], mut effects) = owned();
    graph.relisting(nodes);
    graph.complete(nodes, Some("7"), &mut effects);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, Some(Standing::Dangling));
}

#[test]
fn a_list_with_something_that_cannot_be_read_at_all_proves_nothing() {
    let (mut graph, [nodes, _], mut effects) = owned();
    graph.relisting(nodes);
    graph.keep(nodes, "");
    graph.complete(nodes, Some("7"), &mut effects);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, None);
    // What can be read as far as its UID is kept as it was.
    let (mut graph, [nodes, _], mut effects) = owned();
    graph.relisting(nodes);
    graph.keep(nodes, "owner");
    graph.complete(nodes, Some("7"), &mut effects);
    let child = graph.uid("child").and_then(|uid| graph.view(uid)).unwrap();
    assert_eq!(child.owners[0].2, Some(Standing::Solid));
}

#[test]
fn of_two_monitors_that_show_an_object_the_later_one_has_it() {
    let (mut graph, [nodes, _], mut effects) = owned();
    let again = graph.add_monitor("v2", "Node");
    graph.observe(again, &seen("owner", "5", &[]), &mut effects);
    graph.observe(nodes, &seen("owner", "5", &[]), &mut effects);
    graph.remove_monitor(nodes, &mut effects);
    let owner = graph.uid("owner").and_then(|uid| graph.view(uid)).unwrap();
    assert!(!owner.is_virtual && &*owner.identity.api_version == "v2", "{owner:?}");
}

#[test]
fn whoever_comes_to_act_hears_of_references_that_cannot_be() {
    let (mut graph, [nodes, pods], mut effects) = owned();
    let mut elsewhere = seen("elsewhere", "8", &["inside"]);
    elsewhere.metadata.namespace = Some("n".into());
    let mut inside = seen("inside", "9", &[]);
    inside.metadata.namespace = Some("m".into());
    graph.observe(nodes, &inside, &mut effects);
    graph.observe(pods, &elsewhere, &mut effects);
    let mut effects = Effects::default();
    graph.survey(&mut effects);
    assert_eq!(effects.invalid.len(), 1);
    assert_eq!(&*effects.invalid[0].dependent.name, "elsewhere");
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
