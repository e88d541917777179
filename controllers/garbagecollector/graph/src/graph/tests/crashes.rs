//! Crashes of the collector. After each single write another collector takes over, finishes with
//! the same result, and deletes nothing that an owner keeps.

use std::collections::BTreeMap;

use super::{
    collector::Collector,
    random::{cluster, left_over, restart},
    simulation::{ObjectLocation, Simulation, reference},
};
use crate::{Reference, verdict::PropagationPolicy};

const POD: &str = "v1/Pod";
const SET: &str = "apps/v1/Set";
const POLICIES: [PropagationPolicy; 3] = [
    PropagationPolicy::Background,
    PropagationPolicy::Foreground,
    PropagationPolicy::Orphan,
];
/// More writes than any of these simulations needs.
const MANY: usize = 1_000;

fn create(simulation: &mut Simulation, kind: &str, name: &str, owners: Vec<Reference>) -> Reference {
    let uid = simulation.create(kind, Some("n"), name, None, owners).unwrap();
    reference(kind, name, &uid, true)
}

fn place(of: &Reference) -> ObjectLocation {
    (
        format!("{}/{}", of.api_version, of.kind),
        Some("n".into()),
        of.name.clone(),
    )
}

/// Creates a family and deletes its head. It has children, a grandchild, and a child that another
/// owner keeps as well.
fn family(simulation: &mut Simulation, name: &str, policy: PropagationPolicy) -> Reference {
    let named = |member: &str| format!("{name}-{member}");
    let head = create(simulation, SET, &named("head"), vec![]);
    let keeper = create(simulation, SET, &named("keeper"), vec![]);
    let child = create(simulation, POD, &named("a"), vec![head.clone()]);
    create(simulation, POD, &named("b"), vec![head.clone()]);
    create(simulation, POD, &named("grandchild"), vec![child]);
    create(simulation, POD, &named("shared"), vec![head.clone(), keeper]);
    simulation.delete(&place(&head), policy);
    head
}

/// Returns the clusters that a collector may find when it starts, with their names.
fn simulations() -> Vec<(String, Simulation)> {
    let mut simulations = Vec::new();
    for policy in POLICIES {
        let mut simulation = cluster();
        family(&mut simulation, "one", policy);
        simulations.push((format!("{policy:?}"), simulation));
        for other in POLICIES {
            let mut simulation = cluster();
            let first = create(&mut simulation, SET, "first", vec![]);
            let second = create(&mut simulation, SET, "second", vec![]);
            create(&mut simulation, POD, "both", vec![first.clone(), second.clone()]);
            simulation.delete(&place(&first), policy);
            simulation.delete(&place(&second), other);
            simulations.push((format!("{policy:?} and {other:?}"), simulation));
        }
        // Each blocks the deletion of the other.
        let mut simulation = cluster();
        let one = create(&mut simulation, POD, "one", vec![]);
        let other = create(&mut simulation, POD, "other", vec![one.clone()]);
        simulation.change(&place(&one), |object| object.meta.owner_references.push(other.clone()));
        simulation.delete(&place(&one), policy);
        simulations.push((format!("a cycle, {policy:?}"), simulation.clone()));
        simulation.delete(&place(&other), PropagationPolicy::Foreground);
        simulations.push((format!("a cycle, {policy:?} and Foreground"), simulation));
    }
    simulations
}

/// Whether an object is being deleted, and its owners with whether it blocks their deletion.
type Portrait<'a> = (bool, Vec<(&'a str, bool)>);

/// Returns the objects that exist, without their versions.
fn picture(simulation: &Simulation) -> BTreeMap<&ObjectLocation, Portrait<'_>> {
    let objects = simulation.objects.iter().map(|(place, object)| {
        let owners = object.meta.owner_references.iter();
        let owners = owners.map(|owner| (&*owner.uid, owner.blocks)).collect();
        (place, (object.meta.deleting, owners))
    });
    objects.collect()
}

/// Runs a new collector until it has sent this many writes, or until it is idle.
fn go_on(simulation: &mut Simulation, writes: Option<usize>, case: &str) {
    simulation.writes_until_crash = writes;
    let mut collector = Collector::default();
    restart(simulation, &mut collector);
    collector
        .run_until_idle(simulation)
        .unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(simulation.violations, Vec::<String>::new(), "{case}");
}

fn ensure_same(simulation: &Simulation, undisturbed: &Simulation, case: &str) {
    assert_eq!(left_over(simulation), Vec::<String>::new(), "{case}");
    assert_eq!(picture(simulation), picture(undisturbed), "{case}");
}

#[test]
fn crash_after_any_write_does_not_change_the_result() {
    let mut deaths = 0;
    for (case, start) in simulations() {
        let mut undisturbed = start.clone();
        go_on(&mut undisturbed, Some(MANY), &case);
        let writes = MANY - undisturbed.writes_until_crash.unwrap_or_default();
        assert_eq!(left_over(&undisturbed), Vec::<String>::new(), "{case}");
        for done in 1..=writes {
            let case = format!("{case}, crashed after {done} of {writes}");
            let mut simulation = start.clone();
            go_on(&mut simulation, Some(done), &case);
            assert!(simulation.has_collector_crashed(), "{case}");
            go_on(&mut simulation, None, &case);
            ensure_same(&simulation, &undisturbed, &case);
            deaths += 1;
        }
        // Each of these collectors crashes after one write.
        let mut simulation = start.clone();
        for _ in 0..MANY {
            go_on(&mut simulation, Some(1), &case);
            if !simulation.has_collector_crashed() {
                break;
            }
        }
        ensure_same(&simulation, &undisturbed, &case);
    }
    assert!(deaths > 40, "only {deaths} crashes");
}
