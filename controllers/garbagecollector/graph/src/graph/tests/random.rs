//! Random histories: an object that an owner keeps is never deleted, and all other dependents are
//! deleted in the end.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    collector::Collector,
    simulation::{Simulation, reference},
};
use crate::{
    PartialMetadata, Reference,
    verdict::{DeletionStage, PropagationPolicy},
};

pub(super) const KINDS: [(&str, bool); 4] = [
    ("v1/Pod", true),
    ("v1/Node", false),
    ("apps/v1/Set", true),
    ("late.example.com/v1/Thing", true),
];
/// Other versions of the same kinds.
const OTHER_VERSIONS: [&str; 4] = ["v0/Pod", "v0/Node", "apps/v0/Set", "late.example.com/v0/Thing"];
/// A kind that is not always served.
const LATE: &str = "late.example.com/v1/Thing";
const NAMESPACES: [&str; 2] = ["n", "m"];

/// How an object refers to its owner.
#[derive(Clone, Copy, Debug)]
enum Way {
    Right,
    WrongName,
    WrongKind,
    OtherVersion,
    NoSuchKind,
    NobodysUid,
}

/// One step of a history. Objects, kinds, namespaces and names are given by number.
#[derive(Clone, Debug)]
enum Operation {
    /// A user creates an object.
    Create {
        kind: usize,
        namespace: usize,
        name: usize,
        owners: Vec<(usize, Way, bool)>,
    },
    /// A user replaces the owner references of an object.
    SetOwners {
        object: usize,
        owners: Vec<(usize, Way, bool)>,
    },
    /// A user deletes an object.
    Delete(usize, PropagationPolicy),
    /// Another controller adds or removes its finalizer.
    SetFinalizer(usize, bool),
    /// The watch on a kind delivers this number of events to the collector.
    DeliverEvents(usize, usize),
    /// The collector lists a kind.
    List(usize),
    /// The apiserver starts or stops serving [`LATE`].
    Serve(bool),
    /// The collector can no longer read a kind.
    Lose(usize),
    /// The watch on a kind ends and resumes.
    Interrupt(usize),
    /// The cluster is backed up, or restored from the last backup.
    BackUp,
    Restore,
    /// The collector restarts.
    Restart,
    /// The collector begins an attempt.
    Begin,
    /// One of the running attempts takes a step.
    Step(usize),
    /// The collector orphans the dependents of an owner.
    Orphan,
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![
        12 => Just(Way::Right),
        1 => Just(Way::WrongName),
        1 => Just(Way::WrongKind),
        2 => Just(Way::OtherVersion),
        1 => Just(Way::NoSuchKind),
        1 => Just(Way::NobodysUid),
    ]
}

fn owners() -> impl Strategy<Value = Vec<(usize, Way, bool)>> {
    proptest::collection::vec((0..32_usize, way(), any::<bool>()), 0..4)
}

fn policy() -> impl Strategy<Value = PropagationPolicy> {
    prop_oneof![
        Just(PropagationPolicy::Background),
        Just(PropagationPolicy::Foreground),
        Just(PropagationPolicy::Orphan)
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (0..4_usize, 0..2_usize, 0..6_usize, owners())
            .prop_map(|(kind, namespace, name, owners)| Operation::Create { kind, namespace, name, owners }),
        2 => (0..32_usize, owners()).prop_map(|(object, owners)| Operation::SetOwners { object, owners }),
        4 => (0..32_usize, policy()).prop_map(|(object, policy)| Operation::Delete(object, policy)),
        2 => (0..32_usize, any::<bool>()).prop_map(|(object, on)| Operation::SetFinalizer(object, on)),
        10 => (0..4_usize, 1..4_usize).prop_map(|(kind, count)| Operation::DeliverEvents(kind, count)),
        2 => (0..4_usize).prop_map(Operation::List),
        1 => any::<bool>().prop_map(Operation::Serve),
        1 => (0..4_usize).prop_map(Operation::Lose),
        1 => (0..4_usize).prop_map(Operation::Interrupt),
        1 => Just(Operation::BackUp),
        1 => Just(Operation::Restore),
        1 => Just(Operation::Restart),
        6 => Just(Operation::Begin),
        12 => (0..8_usize).prop_map(Operation::Step),
        2 => Just(Operation::Orphan),
    ]
}

/// Returns another version of one of the kinds.
fn other_version(kind: &str) -> &str {
    let mut known = KINDS.iter().zip(OTHER_VERSIONS);
    let known = known.find(|((known, _), _)| *known == kind);
    known.map_or(kind, |(_, other)| other)
}

/// Returns a cluster with all kinds.
pub(super) fn cluster() -> Simulation {
    let mut simulation = Simulation::new(&KINDS);
    for ((kind, _), other) in KINDS.into_iter().zip(OTHER_VERSIONS) {
        simulation.alias(other, kind);
    }
    simulation
}

/// Returns references to these objects, by number.
fn references(simulation: &Simulation, owners: &[(usize, Way, bool)]) -> Vec<Reference> {
    let known: Vec<_> = simulation.objects.iter().collect();
    let mut references: Vec<Reference> = Vec::new();
    for (number, way, blocks) in owners {
        if known.is_empty() {
            break;
        }
        let ((kind, _, name), object) = known[number % known.len()];
        let uid = &object.meta.uid;
        let reference = match way {
            Way::Right => reference(kind, name, uid, *blocks),
            Way::WrongName => reference(kind, "nobody", uid, *blocks),
            Way::WrongKind => reference("v1/Pod", name, uid, *blocks),
            Way::OtherVersion => reference(other_version(kind), name, uid, *blocks),
            Way::NoSuchKind => reference("gone.example.com/v1/Thing", name, uid, *blocks),
            Way::NobodysUid => reference(kind, name, "nobody", *blocks),
        };
        references.push(reference);
    }
    references
}

fn place(simulation: &Simulation, number: usize) -> Option<(String, Option<Box<str>>, Box<str>)> {
    let count = simulation.objects.len().max(1);
    simulation.objects.keys().nth(number % count).cloned()
}

fn happen(simulation: &mut Simulation, collector: &mut Collector, operation: &Operation) {
    match operation {
        Operation::Create {
            kind,
            namespace,
            name,
            owners,
        } => {
            let owners = references(simulation, owners);
            let name = format!("o{name}");
            simulation.create(KINDS[*kind].0, Some(NAMESPACES[*namespace]), &name, None, owners);
        }
        Operation::SetOwners { object, owners } => {
            let owners = references(simulation, owners);
            if let Some(place) = place(simulation, *object) {
                simulation.change(&place, |object| object.meta.owner_references = owners);
            }
        }
        Operation::Delete(object, policy) => {
            if let Some(place) = place(simulation, *object).filter(|place| !simulation.objects[place].meta.deleting) {
                simulation.delete(&place, *policy);
            }
        }
        Operation::SetFinalizer(object, on) => {
            if let Some(place) = place(simulation, *object) {
                simulation.change(&place, |object| {
                    object.has_foreign_finalizer = *on && (object.has_foreign_finalizer || !object.meta.deleting);
                });
            }
        }
        Operation::DeliverEvents(kind, count) => {
            collector.deliver_events(simulation, KINDS[*kind].0, *count);
        }
        Operation::List(kind) => collector.list(simulation, KINDS[*kind].0),
        Operation::Serve(on) => {
            simulation.serve(LATE, *on);
            if *on {
                collector.list(simulation, LATE);
            } else {
                collector.stop_watching(LATE);
            }
        }
        Operation::Lose(kind) => collector.lose(KINDS[*kind].0),
        Operation::Interrupt(kind) => collector.interrupt(KINDS[*kind].0),
        Operation::BackUp => simulation.back_up(),
        Operation::Restore => {
            if simulation.restore() {
                collector.interrupt_requests();
                for (kind, _) in KINDS {
                    collector.interrupt(kind);
                    collector.list(simulation, kind);
                }
            }
        }
        Operation::Restart => restart(simulation, collector),
        Operation::Begin => drop(collector.begin()),
        Operation::Step(number) => collector.step(simulation, *number),
        Operation::Orphan => drop(collector.orphan(simulation)),
    }
}

/// Replaces the collector by a new one, which lists everything.
pub(super) fn restart(simulation: &Simulation, collector: &mut Collector) {
    *collector = Collector::default();
    for (kind, _) in KINDS {
        collector.list(simulation, kind);
    }
    let mut follow_ups = crate::FollowUps::default();
    collector.graph.full_scan(&mut follow_ups);
    collector.follow(follow_ups);
}

/// Returns the objects that should have been deleted or released, and were not.
pub(super) fn left_over(simulation: &Simulation) -> Vec<String> {
    let mut left = Vec::new();
    for (place, object) in &simulation.objects {
        let meta = &object.meta;
        let namespace = meta.namespace.as_deref();
        let owners = &meta.owner_references;
        let is_kept = owners.is_empty() || owners.iter().any(|owner| simulation.keeps(owner, namespace));
        if !is_kept && !meta.deleting {
            left.push(format!("{place:?} has no owner that keeps it: {owners:?}"));
        }
        if meta.deleting && meta.finalizers.orphan {
            left.push(format!("{place:?} waits for its dependents to be orphaned"));
        }
        let blockers = simulation.objects.values().filter(|other| {
            let mut references = other.meta.owner_references.iter();
            references.any(|reference| reference.uid == meta.uid && reference.blocks)
        });
        if meta.is_waiting_for_dependents() && blockers.count() == 0 {
            left.push(format!("{place:?} waits for dependents, but none blocks it"));
        }
        if waits_for_itself(simulation, meta) {
            left.push(format!(
                "{place:?} waits for its own deletion, through dependents that wait too"
            ));
        }
    }
    left
}

/// Returns whether the object waits for its dependents and belongs to a cycle of such objects, of
/// which each blocks the deletion of the next.
fn waits_for_itself(simulation: &Simulation, meta: &PartialMetadata) -> bool {
    let mut found = BTreeSet::new();
    let mut open = vec![meta];
    while let Some(owner) = open.pop().filter(|owner| owner.is_waiting_for_dependents()) {
        let blockers = simulation.objects.values().map(|object| &object.meta).filter(|other| {
            let mut references = other.owner_references.iter();
            references.any(|reference| reference.uid == owner.uid && reference.blocks)
        });
        for blocker in blockers.filter(|blocker| blocker.is_waiting_for_dependents()) {
            if found.insert(&blocker.uid) {
                open.push(blocker);
            }
        }
    }
    found.contains(&meta.uid)
}

/// Returns the graph without the knowledge that came from requests. The name of a virtual node is
/// left out, because it depends on which dependent was seen first.
fn seen(collector: &Collector) -> Vec<(String, u32, u32, bool, Vec<String>)> {
    let snapshot = collector.graph.snapshot(&[]);
    let nodes = snapshot.nodes.into_iter().map(|node| {
        let name = if node.is_virtual {
            node.identity.uid.to_string()
        } else {
            format!("{} {}", node.identity, node.version)
        };
        let owners = node.owners.iter().map(|(owner, blocks, _)| format!("{owner} {blocks}"));
        (
            name,
            node.dependents,
            node.blocking,
            node.stage == DeletionStage::WaitingForDependents,
            owners.collect(),
        )
    });
    nodes.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn kept_objects_stay_and_all_other_dependents_are_deleted(
        operations in proptest::collection::vec(operation(), 1..120),
    ) {
        let mut simulation = cluster();
        let mut collector = Collector::default();
        restart(&simulation, &mut collector);
        for operation in &operations {
            happen(&mut simulation, &mut collector, operation);
            prop_assert!(simulation.violations.is_empty(), "{:?}", simulation.violations);
        }
        simulation.serve(LATE, true);
        for (kind, _) in KINDS {
            collector.list(&simulation, kind);
        }
        let rest = collector.run_until_idle(&mut simulation);
        prop_assert!(simulation.violations.is_empty(), "{:?}", simulation.violations);
        prop_assert!(rest.is_ok(), "{rest:?}");
        let left = left_over(&simulation);
        prop_assert!(left.is_empty(), "{left:#?}");
        let mut anew = Collector::default();
        std::mem::swap(&mut anew, &mut collector);
        restart(&simulation, &mut collector);
        prop_assert_eq!(seen(&anew), seen(&collector), "the graph depends on its history");
    }
}
