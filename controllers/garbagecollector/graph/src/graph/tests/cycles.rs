//! Cycles of waiting owners, which block the deletion of each other.

use super::{
    collector::Collector,
    simulation::{ObjectLocation, Simulation, reference},
};
use crate::{Finalizers, verdict::PropagationPolicy};

const PODS: &str = "v1/Pod";

fn place(name: &str) -> ObjectLocation {
    (PODS.to_owned(), Some("n".into()), name.into())
}

/// Returns a cluster with these dependents and owners, all of them in foreground deletion, and the
/// collector that has not made an attempt yet.
fn waiting(references: &[(&str, &str)]) -> (Simulation, Collector) {
    let mut simulation = Simulation::new(&[(PODS, true)]);
    let mut names: Vec<_> = references.iter().flat_map(|(a, b)| [*a, *b]).collect();
    names.sort_unstable();
    names.dedup();
    for name in &names {
        simulation.create(PODS, Some("n"), name, Some(&format!("uid-of-{name}")), vec![]);
    }
    for (dependent, owner) in references {
        let reference = reference(PODS, owner, &format!("uid-of-{owner}"), true);
        simulation.change(&place(dependent), |object| object.meta.owner_references.push(reference));
    }
    for name in &names {
        simulation.delete(&place(name), PropagationPolicy::Foreground);
    }
    let mut collector = Collector::default();
    collector.list(&simulation, PODS);
    (simulation, collector)
}

#[test]
fn owners_that_block_each_other_are_deleted() {
    let rows: &[&[(&str, &str)]] = &[
        &[("a", "a")],
        &[("a", "a"), ("a", "a")],
        &[("a", "b"), ("b", "a")],
        &[("a", "b"), ("b", "c"), ("c", "a")],
        // Two cycles that share an object, and a dependent and an owner outside of them.
        &[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"), ("x", "a"), ("c", "y")],
        &[("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")],
    ];
    for references in rows {
        let (mut simulation, mut collector) = waiting(references);
        collector.run_until_idle(&mut simulation).unwrap();
        assert!(
            simulation.objects.is_empty() && collector.graph.is_empty(),
            "{references:?}: {:?}",
            simulation.requests
        );
    }
}

#[test]
fn chain_of_waiting_owners_is_deleted_in_order() {
    let (mut simulation, mut collector) = waiting(&[("a", "b"), ("b", "c")]);
    collector.run_until_idle(&mut simulation).unwrap();
    let expected = ["finish v1/Pod n/a", "finish v1/Pod n/b", "finish v1/Pod n/c"];
    assert_eq!(simulation.requests, expected);
}

#[test]
fn changed_reference_of_a_waiting_owner_closes_a_cycle() {
    let (mut simulation, mut collector) = waiting(&[("a", "b"), ("c", "a")]);
    // A finalizer of another controller keeps the dependent, so the owners wait.
    simulation.change(&place("c"), |object| object.has_foreign_finalizer = true);
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.objects.len(), 3);
    let closing = reference(PODS, "a", "uid-of-a", true);
    simulation.change(&place("b"), |object| object.meta.owner_references.push(closing));
    simulation.change(&place("c"), |object| object.meta.owner_references.clear());
    collector.run_until_idle(&mut simulation).unwrap();
    assert_eq!(simulation.objects.keys().collect::<Vec<_>>(), [&place("c")]);
}

/// The graph lags: it shows a cycle that another client has broken.
#[test]
fn cycle_that_no_longer_exists_is_left_alone() {
    for is_released in [false, true] {
        let (mut simulation, mut collector) = waiting(&[("a", "b"), ("b", "a")]);
        simulation.change(&place("b"), |object| {
            if is_released {
                object.meta.owner_references.clear();
            } else {
                object.has_foreign_finalizer = true;
                object.meta.finalizers = Finalizers::default();
            }
        });
        collector.attempt_all(&mut simulation);
        let writes = simulation.requests.iter().filter(|sent| !sent.starts_with("get"));
        assert_eq!(writes.count(), 0, "{is_released}: {:?}", simulation.requests);
    }
}
