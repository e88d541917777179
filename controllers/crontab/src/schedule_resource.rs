//! The interface between the engine and a kind of schedule: the desired schedule, the recorded
//! status, and how to build Jobs and statuses.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::Resource;
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Object, Target};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};

use crate::{
    api::JobNameFormat,
    assess::Assessment,
    input::{DesiredRuns, Fault, Input, ObservedRuns, RecordedStatus},
    job::{CachedJob, Run},
    job_names::JobNames,
};

/// A kind of object that starts Jobs on a schedule.
pub(crate) trait ScheduleResource: Projection {
    /// The resource of this kind.
    const RESOURCE: Resource;
    /// The versions that can be decoded, if there are several.
    const VERSIONS: &'static [&'static str] = &[];
    /// The name of the histogram that observes how late Jobs are created.
    const SKEW_METRIC: &'static str;
    /// The buckets of this histogram, in seconds.
    const SKEW_BUCKETS: &'static [f64];
    /// The name of the counter of missed runs; `None` if the status of this kind does not record
    /// which runs were counted.
    const MISSED_METRIC: Option<&'static str>;

    /// Returns the resource in the version that the object was read in.
    fn resource(&self) -> Resource {
        Self::RESOURCE
    }

    /// Returns the runs that the spec describes.
    fn desired(&self) -> DesiredRuns;

    /// Returns the name of each schedule of the spec.
    fn schedule_names(&self) -> Vec<Arc<str>>;

    /// Returns the name of each schedule of the spec, and all fields that determine its times.
    fn schedule_fields(&self) -> Vec<(Arc<str>, String)>;

    /// Returns the facts that the status records. If the status was written for other fields of a
    /// schedule, the current ones apply since the time that `rescheduled` returns for its name.
    fn recorded(&self, rescheduled: &dyn Fn(&str) -> Timestamp) -> RecordedStatus<'_>;

    /// Returns the names of the schedules for whose current fields the status was not written.
    /// Always empty for a kind whose status does not show it.
    fn unrecorded_schedules(&self) -> Vec<Arc<str>>;

    /// Returns whether the controller has never written the status. Always false for a kind whose
    /// status does not show it.
    fn is_unrecorded(&self) -> bool;

    /// Returns the format of the names of Jobs that the status records.
    fn job_name_format(&self) -> Option<JobNameFormat>;

    /// Builds the Job `name` of a run.
    ///
    /// # Errors
    ///
    /// Returns an error when the template cannot be decoded or another field that the Job needs is
    /// invalid.
    fn job(&self, run: &Run, name: &str) -> Result<Object, Fault>;

    /// Returns the reasons of the events that report a fault.
    fn event_reasons(&self, fault: &Fault) -> Vec<&'static str> {
        vec![fault.reason]
    }

    /// Returns the new status, or `None` if the current one is already correct. `fault` is why the
    /// spec is invalid or a Job cannot start.
    fn status(&self, assessment: &Assessment<'_>, fault: Option<&Fault>) -> Option<Value>;

    /// Returns the effect that writes a status.
    fn write_status(target: Target, status: Value) -> Effect {
        Effect::PatchStatus { target, status }
    }
}

/// An object and its Jobs, and what this process has observed.
#[derive(Debug)]
pub(crate) struct Observed<K> {
    pub(crate) object: Arc<K>,
    /// The Jobs that the schedule controls, including those that the watch has not shown yet.
    pub(crate) jobs: Vec<Arc<CachedJob>>,
    /// Names in the schedule's naming pattern that are taken by Jobs of other owners.
    pub(crate) taken_names: Vec<Arc<str>>,
    /// The runs that this process has observed.
    pub(crate) runs: ObservedRuns,
}

impl<K: ScheduleResource> Observed<K> {
    /// Combines the object, its cached Jobs, and what this process has observed. That must have
    /// been read before the cache: the tracker forgets a Job once the cache has it.
    pub(crate) fn new(object: Arc<K>, mut jobs: Vec<Arc<CachedJob>>, runs: ObservedRuns) -> Self {
        let uid = &object.metadata().uid;
        runs.unseen.add_to(&mut jobs, uid);
        jobs.retain(|job| !runs.deleted.contains(&job.metadata().uid));
        let foreign = runs.unseen.existing().filter(|job| !job.is_controlled_by(uid));
        Self {
            taken_names: foreign.map(|job| Arc::clone(&job.metadata().name)).collect(),
            object,
            jobs,
            runs,
        }
    }

    /// Returns whether no status and no run of the schedule was ever recorded or observed. The
    /// first status of such a schedule precedes its first Job.
    fn is_new(&self) -> bool {
        self.object.is_unrecorded() && self.jobs.is_empty() && self.runs.is_empty()
    }

    /// Returns the names of the schedule's Jobs. A schedule keeps its format: otherwise a run could
    /// start once under each name.
    pub(crate) fn names(&self) -> JobNames<'_> {
        let for_new = self.is_new().then_some(JobNameFormat::Hashed);
        JobNames {
            owner: &self.object.metadata().name,
            format: self.object.job_name_format().or(for_new),
        }
    }

    /// Returns the input of a decision at the time `now`.
    pub(crate) fn input(&self, now: Timestamp) -> Input<'_> {
        let rescheduled = |name: &str| self.runs.unrecorded_since(name).unwrap_or(now);
        let mut recorded = self.object.recorded(&rescheduled);
        for schedule in &mut recorded.schedules {
            // A later time was recorded while the clock was ahead. Recorded times have whole
            // seconds.
            if schedule.scheduled_since > Some(now) {
                schedule.scheduled_since = Timestamp::from_second(now.as_second()).ok();
            }
        }
        Input {
            resource: self.object.resource(),
            metadata: self.object.metadata(),
            names: self.names(),
            is_new: self.is_new(),
            desired: self.object.desired(),
            recorded,
            jobs: &self.jobs,
            taken_names: &self.taken_names,
            runs: &self.runs,
            missed_metric: K::MISSED_METRIC,
            now,
        }
    }
}

/// The metadata that a template may have.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct TemplateMetadata {
    labels: Option<Map<String, Value>>,
    annotations: Option<Map<String, Value>>,
}

impl TemplateMetadata {
    /// Returns the labels and the annotations.
    pub(crate) fn into_parts(self) -> (Map<String, Value>, Map<String, Value>) {
        (self.labels.unwrap_or_default(), self.annotations.unwrap_or_default())
    }
}

/// Decodes a template, which is the value of `field`.
///
/// # Errors
///
/// Returns the fault to report when the template cannot be decoded.
pub(crate) fn decode_template<T: DeserializeOwned>(field: &str, template: &RawValue) -> Result<T, Fault> {
    serde_json::from_str(template.get()).map_err(|error| Fault {
        reason: "FailedCreate",
        message: format!("Error creating job: cannot decode {field}: {error}"),
    })
}
