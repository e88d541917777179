//! How long a Job lives: `ttlSecondsAfterFinished`, from its end.

use jiff::{SignedDuration, Timestamp};
use portreeve_api::{Metadata, Resource};
use portreeve_informer::Projection;
use serde::{Deserialize, Deserializer};

use crate::expiry::{Expiring, Lifetime};

/// What is kept of a Job.
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

/// Of all conditions, when the Job ended.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    #[serde(rename = "conditions", deserialize_with = "end")]
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
    /// `SuccessCriteriaMet` and `FailureTarget` come earlier, while pods are still ending.
    fn is_an_end(&self) -> bool {
        matches!(&*self.type_, "Complete" | "Failed") && *self.status == *"True"
    }
}

/// The time of the first condition that says that the Job ended, as kube-controller-manager takes it. `completionTime` would not do: Jobs
/// that failed have none.
///
/// A condition without a time says nothing that can be counted from. kube-controller-manager tries such a Job again and again; here it waits
/// for a change, which is the one thing that can help.
fn end<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let conditions: Option<Vec<Condition>> = Option::deserialize(deserializer)?;
    let mut conditions = conditions.into_iter().flatten();
    Ok(conditions
        .find(Condition::is_an_end)
        .and_then(|end| end.last_transition_time))
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
    const LATENCY_HELP: &'static str = "Seconds from the expiry of a finished Job to its deletion";
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
