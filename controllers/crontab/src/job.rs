//! The Jobs of a schedule: their cached fields, their names, and how a Job is built.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::{Timestamp, tz::TimeZone};
use portreeve_api::{Metadata, ObjectKey, OwnerReference, RUN_NOW, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::Object;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The resource of Jobs.
pub(crate) const JOBS: Resource = Resource::namespaced("batch", "v1", "Job", "jobs");
/// Kubernetes' annotation with the time that a Job was scheduled for.
const SCHEDULED_TIMESTAMP_ANNOTATION: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The fields of a Job that the informer stores.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CachedJob {
    metadata: AnnotatedMetadata,
    #[serde(default)]
    status: Status,
}

/// Metadata with the annotations that show the origin of a Job.
#[derive(Clone, Debug, Deserialize)]
struct AnnotatedMetadata {
    #[serde(flatten)]
    base: Metadata,
    #[serde(default)]
    annotations: Option<JobAnnotations>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct JobAnnotations {
    #[serde(rename = "batch.kubernetes.io/cronjob-scheduled-timestamp")]
    scheduled: Option<Box<str>>,
    #[serde(rename = "cronjob.kubernetes.io/instantiate")]
    instantiated: Option<Box<str>>,
    #[serde(rename = "stable.example.com/run-now")]
    run_now: Option<Box<str>>,
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

/// Why a Job exists.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// It was created for this scheduled time.
    Scheduled(Timestamp),
    /// A user requested the run by setting the annotation to this value.
    RunNow(Box<str>),
    /// A user created the Job and annotated it as manual, as `kubectl create job --from` does.
    Manual,
    /// Neither the name nor the annotations show why.
    Unknown,
}

impl CachedJob {
    pub(crate) fn name(&self) -> &str {
        &self.metadata().name
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

    /// Returns why the Job exists. `owner` is the name of the schedule that controls it.
    pub(crate) fn origin(&self, owner: &str) -> Origin {
        let annotations = self.metadata.annotations.as_ref();
        let minutes = self.name().strip_prefix(owner).and_then(|rest| rest.strip_prefix('-'));
        let minutes = minutes.and_then(|digits| digits.parse::<i64>().ok());
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
            return Origin::Scheduled(slot);
        }
        if let Some(value) = annotations.and_then(|annotations| annotations.run_now.clone()) {
            return Origin::RunNow(value);
        }
        if annotations.is_some_and(|annotations| annotations.instantiated.is_some()) {
            return Origin::Manual;
        }
        let from_name = minutes.and_then(|minutes| Timestamp::from_second(minutes.checked_mul(60)?).ok());
        from_name.map_or(Origin::Unknown, Origin::Scheduled)
    }
}

/// A run that should start.
#[derive(Debug)]
pub(crate) enum Run {
    /// A run for this scheduled time.
    Scheduled(Timestamp),
    /// A run that a user requested by setting the annotation to this value.
    Now(Arc<str>),
}

impl Run {
    /// Returns the name of the run's Job. It depends only on the run, so no second Job can be
    /// created for it.
    pub(crate) fn job_name(&self, owner: &str) -> String {
        match self {
            Self::Scheduled(slot) => format!("{owner}-{}", slot.as_second().div_euclid(60)),
            Self::Now(value) => run_now_job_name(owner, value),
        }
    }

    /// Returns the annotation that records the run on its Job.
    fn annotation(&self, zone: &TimeZone) -> (&'static str, String) {
        match self {
            // Go formats every offset of zero as `Z`.
            Self::Scheduled(slot) if zone.to_offset(*slot).seconds() == 0 => {
                (SCHEDULED_TIMESTAMP_ANNOTATION, format!("{slot:.0}"))
            }
            Self::Scheduled(slot) => {
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

/// The maximum number of characters of the owner's name before `-run-` and eight digits. The Job's
/// name becomes the value of a label, which has at most 63 characters.
const MAX_OWNER_CHARS: usize = 50;

/// Returns `<owner>-run-<hash of the value>`. An owner's name that is too long is truncated, and
/// then the hash also covers the whole name.
pub(crate) fn run_now_job_name(owner: &str, value: &str) -> String {
    let stem = truncated_owner(owner);
    if stem == owner {
        return format!("{owner}-run-{:08x}", fnv1a(value.as_bytes()));
    }
    format!("{stem}-run-{:08x}", fnv1a(format!("{owner}/{value}").as_bytes()))
}

/// Returns the part of the owner's name that is used in the name of a run-now Job.
pub(crate) fn truncated_owner(owner: &str) -> &str {
    match owner.char_indices().nth(MAX_OWNER_CHARS) {
        Some((end, _)) => owner[..end].trim_end_matches(['-', '.']),
        None => owner,
    }
}

/// Returns the 32-bit FNV-1a hash. It must never change, because the names of Jobs depend on it.
fn fnv1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

/// Builds the Job of a run from the template's labels and annotations, the given spec and the
/// owner.
pub(crate) fn job_from_template(
    owner: (&Resource, &Metadata),
    run: &Run,
    zone: &TimeZone,
    template: (Map<String, Value>, Map<String, Value>),
    spec: Value,
) -> Object {
    let (resource, metadata) = owner;
    let (labels, mut annotations) = template;
    let (annotation, value) = run.annotation(zone);
    annotations.insert(annotation.to_owned(), value.into());
    let name = run.job_name(&metadata.name);
    let key: ObjectKey = metadata.key().with_name(name.as_str());
    let mut body = json!({
        "apiVersion": JOBS.api_version(),
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": key.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [OwnerReference::controller_owner_ref(resource, metadata)],
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
