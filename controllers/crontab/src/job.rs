//! The Jobs of a schedule: their cached fields, why they exist, and how a Job is built.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::{Timestamp, tz::TimeZone};
use portreeve_api::{AnnotatedMetadata, Metadata, ObjectKey, OwnerReference, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::Object;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    api::{DEFAULT_SCHEDULE, JOB_SCHEDULE, REPLACED_RUNS, RUN_NOW},
    job_names::{self, JobNames},
    origin::Origin,
    replaced_runs::{self, ReplacedRuns},
};

/// The resource of Jobs.
pub(crate) const JOBS: Resource = Resource::namespaced("batch", "v1", "Job", "jobs");
/// Kubernetes' annotation with the time that a Job was scheduled for.
const SCHEDULED_TIMESTAMP_ANNOTATION: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The fields of a Job that the informer stores.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CachedJob {
    metadata: AnnotatedMetadata<JobAnnotations>,
    #[serde(default)]
    status: Status,
}

/// The annotations that show the origin of a Job.
#[derive(Clone, Debug, Default, Deserialize)]
struct JobAnnotations {
    #[serde(rename = "batch.kubernetes.io/cronjob-scheduled-timestamp")]
    scheduled: Option<Box<str>>,
    #[serde(rename = "cronjob.kubernetes.io/instantiate")]
    instantiated: Option<Box<str>>,
    #[serde(rename = "stable.example.com/run-now")]
    run_now: Option<Box<str>>,
    #[serde(rename = "stable.example.com/schedule")]
    schedule: Option<Box<str>>,
    #[serde(
        default,
        rename = "stable.example.com/replaced-runs",
        deserialize_with = "replaced_runs::decode"
    )]
    replaced_runs: Option<Box<ReplacedRuns>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    start_time: Option<Timestamp>,
    completion_time: Option<Timestamp>,
    conditions: Option<Vec<JobCondition>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobCondition {
    #[serde(rename = "type")]
    type_: Box<str>,
    status: Box<str>,
    #[serde(default)]
    last_transition_time: Option<Timestamp>,
}

impl Projection for CachedJob {
    fn metadata(&self) -> &Metadata {
        &self.metadata.base
    }
}

/// How a Job finished.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FinishedStatus {
    /// The condition Complete, with its time.
    Complete(Option<Timestamp>),
    /// The condition Failed, with its time.
    Failed(Option<Timestamp>),
}

impl FinishedStatus {
    /// Returns the condition's type.
    pub(crate) fn condition_type(self) -> &'static str {
        match self {
            Self::Complete(_) => "Complete",
            Self::Failed(_) => "Failed",
        }
    }
}

impl CachedJob {
    pub(crate) fn name(&self) -> &str {
        &self.metadata().name
    }

    /// Returns whether the object with this UID controls the Job.
    pub(crate) fn is_controlled_by(&self, uid: &str) -> bool {
        self.metadata().controller().is_some_and(|owner| *owner.uid == *uid)
    }

    pub(crate) fn finished_status(&self) -> Option<FinishedStatus> {
        let conditions = self.status.conditions.iter().flatten();
        let mut true_conditions = conditions.filter(|condition| &*condition.status == "True");
        true_conditions.find_map(|condition| match &*condition.type_ {
            "Complete" => Some(FinishedStatus::Complete(
                self.status.completion_time.or(condition.last_transition_time),
            )),
            "Failed" => Some(FinishedStatus::Failed(condition.last_transition_time)),
            _ => None,
        })
    }

    /// Returns when the Job started, or else when it was created. Histories are sorted by this
    /// time.
    pub(crate) fn start_time(&self) -> Option<Timestamp> {
        self.status.start_time.or(self.metadata().creation_timestamp)
    }

    /// Returns the runs that this Job replaced although no status recorded them.
    pub(crate) fn replaced_runs(&self) -> Option<&ReplacedRuns> {
        self.metadata.annotations.as_ref()?.replaced_runs.as_deref()
    }

    /// Iterates over the runs that this Job proves: the ones that it replaced, and its own. `owner`
    /// is the name of the object that controls it.
    pub(crate) fn runs(&self, owner: &str) -> impl Iterator<Item = Origin> {
        let replaced = self.replaced_runs().into_iter().flat_map(ReplacedRuns::iter);
        replaced.chain([self.origin(owner)])
    }

    /// Returns why the Job exists. `owner` is the name of the object that controls it.
    pub(crate) fn origin(&self, owner: &str) -> Origin {
        let annotations = self.metadata.annotations.as_ref();
        let schedule = annotations.and_then(|annotations| annotations.schedule.as_deref());
        let schedule = schedule.unwrap_or(DEFAULT_SCHEDULE);
        let minutes = job_names::minutes(owner, schedule, self.name());
        // The annotation has seconds, which `@every` needs. It counts only if it agrees with the
        // name.
        let scheduled = annotations.and_then(|annotations| annotations.scheduled.as_deref());
        // Truncate to whole seconds, as in the status. With a fraction, this time would always be
        // later than the recorded one.
        let from_annotation =
            scheduled.and_then(|text| Timestamp::from_second(text.parse::<Timestamp>().ok()?.as_second()).ok());
        // If the name and this annotation agree, the run was scheduled, whatever other annotations
        // the template added.
        if let Some(slot) = from_annotation.filter(|slot| Some(slot.as_second().div_euclid(60)) == minutes) {
            return Origin::Scheduled(schedule.into(), slot);
        }
        if let Some(value) = annotations.and_then(|annotations| annotations.run_now.clone()) {
            return Origin::RunNow(value);
        }
        if annotations.is_some_and(|annotations| annotations.instantiated.is_some()) {
            return Origin::Manual;
        }
        let from_name = minutes.and_then(|minutes| Timestamp::from_second(minutes.checked_mul(60)?).ok());
        from_name.map_or(Origin::Unknown, |slot| Origin::Scheduled(schedule.into(), slot))
    }
}

/// A run that should start.
#[derive(Debug)]
pub(crate) enum Run {
    /// A run for this time of the schedule of this name.
    Scheduled(Arc<str>, Timestamp),
    /// A run that a user requested by setting the annotation to this value.
    Now(Arc<str>),
}

impl Run {
    /// Returns the name of the run's Job. It depends only on the run, so no second Job can be
    /// created for it.
    pub(crate) fn job_name(&self, names: JobNames<'_>) -> String {
        match self {
            Self::Scheduled(schedule, slot) => names.scheduled(schedule, *slot),
            Self::Now(value) => names.run_now(value),
        }
    }

    /// Returns the name of the schedule.
    pub(crate) fn schedule(&self) -> Option<&str> {
        match self {
            Self::Scheduled(schedule, _) => Some(schedule),
            Self::Now(_) => None,
        }
    }

    /// Returns the annotation that records the run on its Job.
    fn annotation(&self, zone: &TimeZone) -> (&'static str, String) {
        match self {
            // Go formats every offset of zero as `Z`.
            Self::Scheduled(_, slot) if zone.to_offset(*slot).seconds() == 0 => {
                (SCHEDULED_TIMESTAMP_ANNOTATION, format!("{slot:.0}"))
            }
            Self::Scheduled(_, slot) => {
                let zoned = slot.to_zoned(zone.clone());
                (
                    SCHEDULED_TIMESTAMP_ANNOTATION,
                    zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
                )
            }
            Self::Now(value) => (RUN_NOW, value.to_string()),
        }
    }
}

/// What a template says of a Job.
pub(crate) struct JobParts {
    pub(crate) labels: Map<String, Value>,
    pub(crate) annotations: Map<String, Value>,
    pub(crate) spec: Value,
}

/// Builds the Job `name` of a run of the owner, which is of this resource.
pub(crate) fn job_from_template(
    resource: &Resource,
    owner: &Metadata,
    run: &Run,
    name: &str,
    zone: &TimeZone,
    parts: JobParts,
) -> Object {
    let JobParts {
        labels,
        mut annotations,
        spec,
    } = parts;
    let (annotation, value) = run.annotation(zone);
    annotations.insert(annotation.to_owned(), value.into());
    match run.schedule() {
        Some(schedule) if schedule != DEFAULT_SCHEDULE => {
            annotations.insert(JOB_SCHEDULE.to_owned(), schedule.into());
        }
        // The template may have it, too.
        _ => drop(annotations.remove(JOB_SCHEDULE)),
    }
    annotations.remove(REPLACED_RUNS);
    let key: ObjectKey = owner.key().with_name(name);
    let mut body = json!({
        "apiVersion": JOBS.api_version(),
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": key.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [OwnerReference::controller_owner_ref(resource, owner)],
        },
    });
    body["spec"] = spec;
    Object {
        resource: JOBS,
        key,
        body,
    }
}

#[cfg(test)]
mod tests;
