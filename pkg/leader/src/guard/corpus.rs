//! Feeds mutated Leases to the guard. Nothing panics, and the lock always sees a Lease that it can
//! read.

use portreeve_testing::Corpus;

use super::*;
use crate::elector::{ElectionTimings, Elector, ElectorEvent, StepContext};

/// The number of mutations.
const MUTATIONS: usize = 5_000;

const DURATION: Duration = Duration::from_secs(15);

/// Returns whether the Lease has every field that the lock requires.
fn is_complete(lease: &Lease) -> bool {
    lease.spec.as_ref().is_some_and(|spec| {
        spec.holder_identity.is_some() && spec.lease_duration_seconds.is_some() && spec.renew_time.is_some()
    })
}

fn check(input: &[u8]) {
    let Ok(lease) = serde_json::from_slice::<Value>(input) else {
        return;
    };
    for me in ["node-1_0b5a", "another"] {
        let cache = LeaseCache::new(me.to_owned(), DURATION);
        if cache.record_response(&lease, None).is_err() {
            assert!(cache.observed().is_none(), "an unreadable Lease must not be observed");
            continue;
        }
        let shown: Lease =
            serde_json::from_value(cache.lease_for_lock(&lease)).expect("the lock must be able to read the Lease");
        assert!(is_complete(&shown), "{shown:?}");
        let version = cache.version();
        assert_ne!(
            version,
            Some(Value::from("")),
            "an empty version must not be used as a precondition"
        );
        // The watch delivers the same Lease, and then its deletion.
        let read: Lease = serde_json::from_value(lease.clone()).expect("the same JSON was parsed before");
        cache.apply_watch_event(read.clone());
        decide(&cache, me);
        cache.apply_delete_event(read);
        decide(&cache, me);
        assert_eq!(cache.version(), None);
    }
}

/// Runs a step on the observed Lease, which must not panic.
fn decide(cache: &LeaseCache, me: &str) {
    let observed = cache.observed();
    let times = ElectionTimings {
        lease_duration: DURATION,
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_secs(2),
    };
    let context = StepContext {
        now: boot_clock::now(),
        observed: observed.as_ref(),
        acquire_delay: Duration::ZERO,
        jitter: 0.5,
    };
    Elector::new(times).step(ElectorEvent::Tick, me, &context);
}

#[test]
fn the_lock_can_read_every_mutated_lease() -> anyhow::Result<()> {
    Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/lease"))?.check(MUTATIONS, check)
}
