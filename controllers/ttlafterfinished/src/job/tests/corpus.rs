//! Decides on recorded Jobs and on mutations of them: no Job makes a decision panic, and only
//! expired Jobs are deleted.

use portreeve_reconcile::{Effect, Next};
use portreeve_testing::Corpus;

use super::*;
use crate::expiry::{decide, refused};

/// The number of mutations.
const MUTATIONS: usize = 5_000;

fn check(job: &CachedJob) {
    for now in [Timestamp::MIN, Timestamp::UNIX_EPOCH, Timestamp::MAX] {
        let plan = decide(job, now);
        if let Next::At(time) = plan.next {
            assert!(time > now, "{time} is not later than {now}");
        }
        assert!(!refused(job, "the deletion was rejected").effects.is_empty());
        for effect in plan.effects {
            assert!(!effect.to_string().is_empty());
            if let Effect::Delete { target, .. } = effect {
                let expires_at = job.lifetime().and_then(Lifetime::expires_at);
                assert!(expires_at.is_some_and(|expires_at| expires_at <= now), "{expires_at:?}");
                assert_eq!(target.uid, job.metadata.uid);
            }
        }
    }
}

#[test]
fn no_decodable_job_makes_a_decision_panic() -> anyhow::Result<()> {
    Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/job"))?.check(MUTATIONS, |input| {
        if let Ok(job) = serde_json::from_slice::<CachedJob>(input) {
            check(&job);
        }
    })
}
