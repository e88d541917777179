//! The Jobs of a schedule: what is kept of them, what they are called, and how one is made.

use std::sync::Arc;

use jiff::{Timestamp, tz::TimeZone};
use portreeve_api::{Metadata, ObjectKey, OwnerReference, RUN_NOW, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::Object;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Where Jobs are served.
pub(crate) const JOBS: Resource = Resource::namespaced("batch", "v1", "Job", "jobs");
/// Kubernetes' annotation with the time that a Job was scheduled for.
pub(crate) const SCHEDULED_TIMESTAMP_ANNOTATION: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// What is kept of a Job.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct CachedJob {
    metadata: AnnotatedMetadata,
    #[serde(default)]
    status: Status,
}

/// Metadata with the annotations that say where a Job comes from.
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

/// How a Job ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum FinishedStatus {
    /// The condition Complete, with its time.
    Complete(Option<Timestamp>),
    /// The condition Failed, with its time.
    Failed(Option<Timestamp>),
}

impl FinishedStatus {
    /// The condition's type.
    pub(crate) fn condition_type(self) -> &'static str {
        match self {
            Self::Complete(_) => "Complete",
            Self::Failed(_) => "Failed",
        }
    }
}

/// Why a Job exists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// A scheduled time had come.
    Scheduled(Timestamp),
    /// Somebody asked by annotation, with this value.
    RunNow(Box<str>),
    /// Somebody made it by hand and said so, as `kubectl create job --from` does.
    Manual,
    /// Nobody knows.
    Unknown,
}

impl CachedJob {
    pub(crate) fn name(&self) -> &str {
        &self.metadata().name
    }

    pub(crate) fn finished_status(&self) -> Option<FinishedStatus> {
        let conditions = self.status.conditions.iter().flatten();
        let mut true_ones = conditions.filter(|condition| &*condition.status == "True");
        true_ones.find_map(|condition| match &*condition.type_ {
            "Complete" => Some(FinishedStatus::Complete(
                self.status.completion_time.or(condition.last_transition_time),
            )),
            "Failed" => Some(FinishedStatus::Failed(condition.last_transition_time)),
            _ => None,
        })
    }

    /// When it began: what histories are sorted by.
    pub(crate) fn start_time(&self) -> Option<Timestamp> {
        self.status.start_time.or(self.metadata().creation_timestamp)
    }

    /// Why it exists, given the name of the schedule that owns it.
    pub(crate) fn origin(&self, owner: &str) -> Origin {
        let marks = self.metadata.annotations.as_ref();
        let minutes = self.name().strip_prefix(owner).and_then(|rest| rest.strip_prefix('-'));
        let minutes = minutes.and_then(|digits| digits.parse::<i64>().ok());
        // The annotation has seconds, which an @every may need; the name has the last word on whether it is this one's.
        let scheduled = marks.and_then(|marks| marks.scheduled.as_deref());
        // In whole seconds, as times are stored: a slot with a fraction would be later than what is stored for it, for ever.
        let by_mark =
            scheduled.and_then(|text| Timestamp::from_second(text.parse::<Timestamp>().ok()?.as_second()).ok());
        // Where both agree they are right, whatever marks the template brought with it.
        if let Some(slot) = by_mark.filter(|slot| Some(slot.as_second().div_euclid(60)) == minutes) {
            return Origin::Scheduled(slot);
        }
        if let Some(value) = marks.and_then(|marks| marks.run_now.clone()) {
            return Origin::RunNow(value);
        }
        if marks.is_some_and(|marks| marks.instantiated.is_some()) {
            return Origin::Manual;
        }
        let by_name = minutes.and_then(|minutes| Timestamp::from_second(minutes.checked_mul(60)?).ok());
        by_name.map_or(Origin::Unknown, Origin::Scheduled)
    }
}

/// A run that is to start.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Run {
    /// For a scheduled time.
    Scheduled(Timestamp),
    /// Because the annotation has this value.
    Now(Arc<str>),
}

impl Run {
    /// The name of its Job: the same whoever makes it, and whenever, so that there is never a second one.
    pub(crate) fn job_name(&self, owner: &str) -> String {
        match self {
            Self::Scheduled(slot) => format!("{owner}-{}", slot.as_second().div_euclid(60)),
            Self::Now(value) => run_now_job_name(owner, value),
        }
    }

    /// What the Job says about where it comes from.
    pub(crate) fn annotation(&self, zone: &TimeZone) -> (&'static str, String) {
        match self {
            // As Go writes it: Z wherever the offset is none.
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

/// How much of the owner's name fits before `-run-` and eight digits: the name of a Job becomes a label, which has 63 characters.
const OWNER_IN_RUN_NOW: usize = 50;

/// `<name>-run-<hash of the value>`. A name that leaves no room is cut, and then the hash covers it too.
pub(crate) fn run_now_job_name(owner: &str, value: &str) -> String {
    let stem = truncated_owner(owner);
    if stem == owner {
        return format!("{owner}-run-{:08x}", fnv1a(value.as_bytes()));
    }
    format!("{stem}-run-{:08x}", fnv1a(format!("{owner}/{value}").as_bytes()))
}

/// What is left of the owner's name there.
pub(crate) fn truncated_owner(owner: &str) -> &str {
    match owner.char_indices().nth(OWNER_IN_RUN_NOW) {
        Some((end, _)) => owner[..end].trim_end_matches(['-', '.']),
        None => owner,
    }
}

/// FNV-1a of 32 bits: stable for ever, as names depend on it.
fn fnv1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

/// The Job of a run: `labels` and `annotations` of the template, `spec` as it is to be, and the owner.
pub(crate) fn job_from_template(
    owner: (&Resource, &Metadata),
    run: &Run,
    zone: &TimeZone,
    template: (Map<String, Value>, Map<String, Value>),
    spec: Value,
) -> Object {
    let (resource, metadata) = owner;
    let (labels, mut annotations) = template;
    let (mark, value) = run.annotation(zone);
    annotations.insert(mark.to_owned(), value.into());
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
