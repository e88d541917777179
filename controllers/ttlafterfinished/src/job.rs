//! Computes the lifetime of a Job: `ttlSecondsAfterFinished`, counted from its end.

use jiff::{SignedDuration, Timestamp};
use portreeve_api::{Metadata, Resource};
use portreeve_informer::Projection;
use serde::{Deserialize, Deserializer};

use crate::expiry::{Expiring, Lifetime};

/// The fields of a Job that the informer stores.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CachedJob {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    ttl_seconds_after_finished: Option<i32>,
}

/// The time at which the Job finished. The rest of the conditions is not stored.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(rename = "conditions", deserialize_with = "finish_time")]
    finished: Option<Timestamp>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: Box<str>,
    status: Box<str>,
    last_transition_time: Option<Timestamp>,
}

impl Condition {
    /// Returns whether this condition marks the Job as finished. `SuccessCriteriaMet` and
    /// `FailureTarget` do not: they are set earlier, while Pods are still terminating.
    fn is_finished(&self) -> bool {
        matches!(&*self.type_, "Complete" | "Failed") && *self.status == *"True"
    }
}

/// Returns the time of the first condition that marks the Job as finished, as
/// kube-controller-manager does. `completionTime` is no alternative, because failed Jobs have none.
///
/// A condition may lack a time. kube-controller-manager then retries the Job again and again. This
/// controller waits for a change, because only a change can add a time.
fn finish_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let conditions: Option<Vec<Condition>> = Option::deserialize(deserializer)?;
    let mut conditions = conditions.into_iter().flatten();
    Ok(conditions
        .find(Condition::is_finished)
        .and_then(|condition| condition.last_transition_time))
}

impl Projection for CachedJob {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Expiring for CachedJob {
    const RESOURCE: Resource = Resource::namespaced("batch", "v1", "Job", "jobs");
    const QUEUE: &'static str = "ttl_jobs_to_delete";
    const LATENCY_METRIC: &'static str = "ttl_after_finished_controller_job_deletion_duration_seconds";
    const LATENCY_HELP: &'static str = "Seconds from the expiry of a finished Job to its deletion.";
    /// Those of kube-controller-manager.
    const LATENCY_BUCKETS: &'static [f64] = &[
        0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2,
    ];
    const START_VERB: &'static str = "finished";

    fn lifetime(&self) -> Option<Lifetime> {
        let seconds = self.spec.ttl_seconds_after_finished?;
        Some(Lifetime {
            began: self.status.finished?,
            ttl: SignedDuration::from_secs(seconds.into()),
        })
    }
}

#[cfg(test)]
mod tests;
