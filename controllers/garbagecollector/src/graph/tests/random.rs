//! Any history of any world: what an owner keeps is never deleted, and what nothing keeps is gone in the end.

use proptest::prelude::*;

use super::{
    collector::Collector,
    world::{World, reference},
};
use crate::{
    Reference,
    verdict::{Policy, Stage},
};

pub(super) const KINDS: [(&str, bool); 4] = [
    ("v1/Pod", true),
    ("v1/Node", false),
    ("apps/v1/Set", true),
    ("late.example.com/v1/Thing", true),
];
/// Comes and goes.
const LATE: &str = "late.example.com/v1/Thing";
const NAMESPACES: [&str; 2] = ["n", "m"];

/// How an object refers to another one.
#[derive(Clone, Copy, Debug)]
enum Way {
    Right,
    WrongName,
    WrongKind,
    NoSuchKind,
    NobodysUid,
}

#[derive(Clone, Debug)]
enum Event {
    Create {
        kind: usize,
        namespace: usize,
        name: usize,
        owners: Vec<(usize, Way, bool)>,
    },
    Own {
        object: usize,
        owners: Vec<(usize, Way, bool)>,
    },
    Delete(usize, Policy),
    Hold(usize, bool),
    Hear(usize, usize),
    List(usize),
    Serve(bool),
    Restart,
    Begin,
    Step(usize),
    Orphan,
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![
        12 => Just(Way::Right),
        1 => Just(Way::WrongName),
        1 => Just(Way::WrongKind),
        1 => Just(Way::NoSuchKind),
        1 => Just(Way::NobodysUid),
    ]
}

fn owners() -> impl Strategy<Value = Vec<(usize, Way, bool)>> {
    proptest::collection::vec((0..32_usize, way(), any::<bool>()), 0..4)
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Background), Just(Policy::Foreground), Just(Policy::Orphan)]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (0..4_usize, 0..2_usize, 0..6_usize, owners())
            .prop_map(|(kind, namespace, name, owners)| Event::Create { kind, namespace, name, owners }),
        2 => (0..32_usize, owners()).prop_map(|(object, owners)| Event::Own { object, owners }),
        4 => (0..32_usize, policy()).prop_map(|(object, policy)| Event::Delete(object, policy)),
        2 => (0..32_usize, any::<bool>()).prop_map(|(object, on)| Event::Hold(object, on)),
        10 => (0..4_usize, 1..4_usize).prop_map(|(kind, count)| Event::Hear(kind, count)),
        2 => (0..4_usize).prop_map(Event::List),
        1 => any::<bool>().prop_map(Event::Serve),
        1 => Just(Event::Restart),
        6 => Just(Event::Begin),
        12 => (0..8_usize).prop_map(Event::Step),
        2 => Just(Event::Orphan),
    ]
}

/// References to these objects, by number, as somebody in this namespace would write them.
fn references(world: &World, owners: &[(usize, Way, bool)]) -> Vec<Reference> {
    let known: Vec<_> = world.objects.iter().collect();
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
            Way::NoSuchKind => reference("gone.example.com/v1/Thing", name, uid, *blocks),
            Way::NobodysUid => reference(kind, name, "nobody", *blocks),
        };
        references.push(reference);
    }
    references
}

fn place(world: &World, number: usize) -> Option<(String, Option<Box<str>>, Box<str>)> {
    let count = world.objects.len().max(1);
    world.objects.keys().nth(number % count).cloned()
}

fn happen(world: &mut World, collector: &mut Collector, event: &Event) {
    match event {
        Event::Create {
            kind,
            namespace,
            name,
            owners,
        } => {
            let owners = references(world, owners);
            let name = format!("o{name}");
            world.create(KINDS[*kind].0, Some(NAMESPACES[*namespace]), &name, None, owners);
        }
        Event::Own { object, owners } => {
            let owners = references(world, owners);
            if let Some(place) = place(world, *object) {
                world.change(&place, |object| object.meta.owner_references = owners);
            }
        }
        Event::Delete(object, policy) => {
            if let Some(place) = place(world, *object).filter(|place| !world.objects[place].meta.deleting) {
                world.delete(&place, *policy);
            }
        }
        Event::Hold(object, on) => {
            if let Some(place) = place(world, *object) {
                world.change(&place, |object| {
                    object.held = *on && (object.held || !object.meta.deleting);
                });
            }
        }
        Event::Hear(kind, count) => {
            collector.hear(world, KINDS[*kind].0, *count);
        }
        Event::List(kind) => collector.list(world, KINDS[*kind].0),
        Event::Serve(on) => {
            world.serve(LATE, *on);
            if *on {
                collector.list(world, LATE);
            } else {
                collector.leave(LATE);
            }
        }
        Event::Restart => restart(world, collector),
        Event::Begin => drop(collector.begin()),
        Event::Step(number) => collector.step(world, *number),
        Event::Orphan => drop(collector.orphan(world)),
    }
}

/// Another collector takes over, which reads everything.
pub(super) fn restart(world: &World, collector: &mut Collector) {
    *collector = Collector::default();
    for (kind, _) in KINDS {
        collector.list(world, kind);
    }
    let mut effects = crate::Effects::default();
    collector.graph.survey(&mut effects);
    collector.follow(effects);
}

/// What should be gone, or let go, and is there.
pub(super) fn left_over(world: &World) -> Vec<String> {
    let mut left = Vec::new();
    for (place, object) in &world.objects {
        let meta = &object.meta;
        let namespace = meta.namespace.as_deref();
        let owners = &meta.owner_references;
        let is_kept = owners.is_empty() || owners.iter().any(|owner| world.keeps(owner, namespace));
        if !is_kept && !meta.deleting {
            left.push(format!("{place:?} is kept by nobody: {owners:?}"));
        }
        if meta.deleting && meta.finalizers.orphan {
            left.push(format!("{place:?} waits for its dependents to be orphaned"));
        }
        let blockers = world.objects.values().filter(|other| {
            let mut references = other.meta.owner_references.iter();
            references.any(|reference| reference.uid == meta.uid && reference.blocks)
        });
        if meta.is_waiting() && blockers.count() == 0 {
            left.push(format!("{place:?} waits for nobody"));
        }
    }
    left
}

/// The graph without what was learnt by asking. What a virtual node is called depends on who was seen first.
fn seen(collector: &Collector) -> Vec<(String, u32, u32, bool, Vec<String>)> {
    let shape = collector.graph.shape(&[]);
    let nodes = shape.nodes.into_iter().map(|node| {
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
            node.stage == Stage::Waiting,
            owners.collect(),
        )
    });
    nodes.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_kept_is_deleted_and_nothing_else_is_left(
        events in proptest::collection::vec(event(), 1..120),
    ) {
        let mut world = World::new(&KINDS);
        let mut collector = Collector::default();
        restart(&world, &mut collector);
        for event in &events {
            happen(&mut world, &mut collector, event);
            prop_assert!(world.crimes.is_empty(), "{:?}", world.crimes);
        }
        world.serve(LATE, true);
        for (kind, _) in KINDS {
            collector.list(&world, kind);
        }
        let rest = collector.settle(&mut world);
        prop_assert!(world.crimes.is_empty(), "{:?}", world.crimes);
        prop_assert!(rest.is_ok(), "{rest:?}");
        let left = left_over(&world);
        prop_assert!(left.is_empty(), "{left:#?}");
        let mut anew = Collector::default();
        std::mem::swap(&mut anew, &mut collector);
        restart(&world, &mut collector);
        prop_assert_eq!(seen(&anew), seen(&collector), "the history of a graph makes no difference");
    }
}
