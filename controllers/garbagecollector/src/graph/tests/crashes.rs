//! Wherever the collector dies: after each single write of it, somebody else brings the same to an end, and deletes nothing that is kept.

use std::collections::BTreeMap;

use super::{
    collector::Collector,
    random::{KINDS, left_over, restart},
    world::{Place, World, reference},
};
use crate::{Reference, verdict::Policy};

const POD: &str = "v1/Pod";
const SET: &str = "apps/v1/Set";
const POLICIES: [Policy; 3] = [Policy::Background, Policy::Foreground, Policy::Orphan];
/// More than any of these worlds needs.
const MANY: usize = 1_000;

fn create(world: &mut World, kind: &str, name: &str, owners: Vec<Reference>) -> Reference {
    let uid = world.create(kind, Some("n"), name, None, owners).unwrap();
    reference(kind, name, &uid, true)
}

fn place(of: &Reference) -> Place {
    (
        format!("{}/{}", of.api_version, of.kind),
        Some("n".into()),
        of.name.clone(),
    )
}

/// A family: children, a grandchild, and one that somebody else keeps as well. Its head is deleted.
fn family(world: &mut World, name: &str, policy: Policy) -> Reference {
    let named = |member: &str| format!("{name}-{member}");
    let head = create(world, SET, &named("head"), vec![]);
    let keeper = create(world, SET, &named("keeper"), vec![]);
    let child = create(world, POD, &named("a"), vec![head.clone()]);
    create(world, POD, &named("b"), vec![head.clone()]);
    create(world, POD, &named("grandchild"), vec![child]);
    create(world, POD, &named("shared"), vec![head.clone(), keeper]);
    world.delete(&place(&head), policy);
    head
}

/// What a collector may find when it starts.
fn worlds() -> Vec<(String, World)> {
    let mut worlds = Vec::new();
    for policy in POLICIES {
        let mut world = World::new(&KINDS);
        family(&mut world, "one", policy);
        worlds.push((format!("{policy:?}"), world));
        for other in POLICIES {
            let mut world = World::new(&KINDS);
            let first = create(&mut world, SET, "first", vec![]);
            let second = create(&mut world, SET, "second", vec![]);
            create(&mut world, POD, "both", vec![first.clone(), second.clone()]);
            world.delete(&place(&first), policy);
            world.delete(&place(&second), other);
            worlds.push((format!("{policy:?} and {other:?}"), world));
        }
        // Each blocks the other one.
        let mut world = World::new(&KINDS);
        let one = create(&mut world, POD, "one", vec![]);
        let other = create(&mut world, POD, "other", vec![one.clone()]);
        world.change(&place(&one), |object| object.meta.owner_references.push(other));
        world.delete(&place(&one), policy);
        worlds.push((format!("a circle, {policy:?}"), world));
    }
    worlds
}

/// Whether an object is being deleted, and its owners with whether each is blocked.
type Portrait<'a> = (bool, Vec<(&'a str, bool)>);

/// What is there in the end, without versions.
fn picture(world: &World) -> BTreeMap<&Place, Portrait<'_>> {
    let objects = world.objects.iter().map(|(place, object)| {
        let owners = object.meta.owner_references.iter();
        let owners = owners.map(|owner| (&*owner.uid, owner.blocks)).collect();
        (place, (object.meta.deleting, owners))
    });
    objects.collect()
}

/// A new collector goes on for so many writes, or to the end.
fn go_on(world: &mut World, writes: Option<usize>, case: &str) {
    world.lives_for = writes;
    let mut collector = Collector::default();
    restart(world, &mut collector);
    collector
        .settle(world)
        .unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(world.crimes, Vec::<String>::new(), "{case}");
}

fn ensure_same(world: &World, undisturbed: &World, case: &str) {
    assert_eq!(left_over(world), Vec::<String>::new(), "{case}");
    assert_eq!(picture(world), picture(undisturbed), "{case}");
}

#[test]
fn no_death_after_any_write_shows_in_the_end() {
    let mut deaths = 0;
    for (case, start) in worlds() {
        let mut undisturbed = start.clone();
        go_on(&mut undisturbed, Some(MANY), &case);
        let writes = MANY - undisturbed.lives_for.unwrap_or_default();
        assert_eq!(left_over(&undisturbed), Vec::<String>::new(), "{case}");
        for done in 1..=writes {
            let case = format!("{case}, dead after {done} of {writes}");
            let mut world = start.clone();
            go_on(&mut world, Some(done), &case);
            assert!(world.is_collector_dead(), "{case}");
            go_on(&mut world, None, &case);
            ensure_same(&world, &undisturbed, &case);
            deaths += 1;
        }
        // Each of them lives for one write.
        let mut world = start.clone();
        for _ in 0..MANY {
            go_on(&mut world, Some(1), &case);
            if !world.is_collector_dead() {
                break;
            }
        }
        ensure_same(&world, &undisturbed, &case);
    }
    assert!(deaths > 40, "only {deaths} deaths");
}
