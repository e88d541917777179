//! Tests of the expiry rules with a kind that is not a Job. In a simulation users change, delete
//! and recreate an object, the watch lags, clocks are set, and the process crashes between any two
//! effects.

use std::sync::Arc;

use proptest::{collection::vec, prelude::*};
use serde::Deserialize;

use super::*;

mod simulation;

use simulation::Simulation;

/// A loaf of bread that expires `keeps` seconds after it was baked.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Loaf {
    metadata: portreeve_api::Metadata,
    baked: Option<i64>,
    keeps: Option<i64>,
}

impl Projection for Loaf {
    fn metadata(&self) -> &portreeve_api::Metadata {
        &self.metadata
    }
}

impl Expiring for Loaf {
    const RESOURCE: Resource = Resource::namespaced("bakery.example", "v1", "Loaf", "loaves");
    const QUEUE: &'static str = "loaves";
    const LATENCY_METRIC: &'static str = "bakery_staleness_seconds";
    const LATENCY_HELP: &'static str = "Seconds from the expiry of a loaf to its deletion";
    const LATENCY_BUCKETS: &'static [f64] = &[1.0];
    const START_VERB: &'static str = "was baked";

    fn lifetime(&self) -> Option<Lifetime> {
        Some(Lifetime {
            began: Timestamp::from_second(self.baked?).ok()?,
            ttl: SignedDuration::from_secs(self.keeps?),
        })
    }
}

fn loaf(baked: i64, keeps: i64) -> Loaf {
    let metadata = portreeve_api::Metadata {
        name: Arc::from("rye"),
        ..portreeve_api::Metadata::default()
    };
    Loaf {
        metadata,
        baked: Some(baked),
        keeps: Some(keeps),
    }
}

fn print(loaf: &Loaf, now: i64) -> String {
    decide(loaf, Timestamp::from_second(now).unwrap()).to_string()
}

#[test]
fn expiry_beyond_the_timestamp_range_never_comes() {
    let end = Timestamp::MAX.as_second();
    assert_eq!(print(&loaf(end, 1), end), "nothing");
    assert_eq!(print(&loaf(0, i64::MAX), end), "nothing");
}

#[test]
fn rejection_is_reported_once_with_the_apiservers_message() {
    let plan = refused(&loaf(0, 0), "failed to delete Loaf rye: denied");
    let [Effect::Event(_, note)] = &plan.effects[..] else {
        panic!("the plan must be a single event: {plan}");
    };
    assert_eq!(
        (note.reason, note.type_),
        ("FailedDelete", portreeve_reconcile::EventSeverity::Warning)
    );
    assert_eq!(note.report_once.as_ref(), Some(&note.message));
    assert_eq!(plan.next, Next::OnChange, "the worker retries the deletion itself");
}

/// An action in a simulation. The object's times are in seconds, all others in milliseconds.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// A user creates or updates the object.
    Write { baked: Option<i64>, keeps: Option<i64> },
    /// A user deletes the object. With a finalizer it stays and is terminating.
    Delete { has_finalizer: bool },
    /// The last finalizer is removed.
    Finalize,
    /// The watch delivers this number of changes to the cache.
    Deliver(usize),
    /// Time passes.
    Pass(i64),
    /// The clock is set forward or back by this time.
    Set(i64),
    /// The process crashes and another one starts.
    Restart,
    /// The process crashes within its next plan, after this number of effects.
    CrashAfter(usize),
}

fn action() -> impl Strategy<Value = Action> {
    let seconds = || proptest::option::weighted(0.8, 0..40_i64);
    prop_oneof![
        4 => (seconds(), seconds()).prop_map(|(baked, keeps)| Action::Write { baked, keeps }),
        1 => any::<bool>().prop_map(|has_finalizer| Action::Delete { has_finalizer }),
        1 => Just(Action::Finalize),
        4 => (1..4_usize).prop_map(Action::Deliver),
        4 => (0..15_000_i64).prop_map(Action::Pass),
        1 => (-30_000..30_000_i64).prop_map(Action::Set),
        1 => Just(Action::Restart),
        1 => (0..2_usize).prop_map(Action::CrashAfter),
    ]
}

proptest! {
    #[test]
    fn objects_are_deleted_exactly_when_they_expire(actions in vec(action(), 0..40)) {
        let mut simulation = Simulation::default();
        for action in &actions {
            simulation.apply(action);
        }
        simulation.converge();
        prop_assert_eq!(simulation.violations, Vec::<String>::new());
    }
}
