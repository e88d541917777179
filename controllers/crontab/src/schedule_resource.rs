//! The interface between the engine and a kind of schedule: the desired schedule, the recorded
//! status, and how to build Jobs and statuses.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::{ConcurrencyPolicy, JobReference, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::Object;
use serde_json::Value;

use crate::{
    job::Run,
    job_summary::JobSummary,
    scheduled_times::{ScheduledTimes, Timetable},
};

/// A kind of object that starts Jobs on a schedule.
pub(crate) trait ScheduleResource: Projection {
    /// The resource of this kind.
    const RESOURCE: Resource;
    /// The name of the histogram that observes how late Jobs are created.
    const SKEW_METRIC: &'static str;
    /// The name of the counter of missed runs; `None` if the status of this kind does not record
    /// which runs were counted.
    const MISSED_METRIC: Option<&'static str>;

    /// Returns the schedule that the spec describes.
    fn desired(&self) -> DesiredSchedule;

    /// Returns the facts that the status records. If the status was written for another schedule,
    /// the current one applies since `rescheduled`.
    fn recorded(&self, rescheduled: Timestamp) -> RecordedStatus<'_>;

    /// Builds the Job of a run.
    ///
    /// # Errors
    ///
    /// Returns an error when the template cannot be decoded or another field that the Job needs is
    /// invalid.
    fn job(&self, run: &Run) -> Result<Object, Fault>;

    /// Returns the new status, or `None` if the current one is already correct.
    fn status(&self, report: &Report<'_>, now: Timestamp) -> Option<Value>;
}

/// The schedule that a spec describes.
#[derive(Clone, Debug)]
pub(crate) struct DesiredSchedule {
    /// The times of its runs, or why the schedule is invalid.
    pub(crate) timetable: Result<Timetable, Fault>,
    pub(crate) suspend: bool,
    pub(crate) concurrency: ConcurrencyPolicy,
    /// The number of successful Jobs to keep; `None` keeps all.
    pub(crate) keep_successful: Option<usize>,
    /// The number of failed Jobs to keep; `None` keeps all.
    pub(crate) keep_failed: Option<usize>,
    /// The value of the run-now annotation, which requests a run.
    pub(crate) run_now: Option<Arc<str>>,
    /// A problem to report that does not prevent runs.
    pub(crate) warning: Option<Fault>,
}

/// A problem of an object, reported as an event and a condition.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fault {
    /// The reason, in `CamelCase`.
    pub(crate) reason: &'static str,
    /// The message for people.
    pub(crate) message: String,
}

/// The facts that a status records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedStatus<'a> {
    /// The Jobs that were active when the status was written.
    pub(crate) active: &'a [JobReference],
    /// The last scheduled time for which a Job was created.
    pub(crate) last_schedule: Option<Timestamp>,
    /// When the last successful Job finished.
    pub(crate) last_success: Option<Timestamp>,
    /// When the last failed Job finished.
    pub(crate) last_failure: Option<Timestamp>,
    /// The last scheduled time that was reported as missed.
    pub(crate) last_missed: Option<Timestamp>,
    /// The last value of the run-now annotation for which a Job was created.
    pub(crate) last_run_now: Option<&'a str>,
    /// Since when the current schedule applies, if that is later than the object's creation.
    pub(crate) scheduled_since: Option<Timestamp>,
    /// Whether the status was written while the schedule was suspended.
    pub(crate) was_suspended: bool,
    /// The reason and message of the condition Ready.
    pub(crate) last_reported: Option<(&'a str, &'a str)>,
}

/// The facts from which a kind builds its status.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) summary: &'a JobSummary<'a>,
    /// `None` while the schedule is suspended, terminating or invalid.
    pub(crate) times: Option<&'a ScheduledTimes>,
    pub(crate) missed: Option<Missed>,
    /// Why the spec is invalid or a Job cannot start.
    pub(crate) fault: Option<&'a Fault>,
    /// Whether the spec is valid, so that `fault` has another cause.
    pub(crate) is_valid: bool,
    /// Since when the current schedule applies, if that is later than the object's creation.
    pub(crate) scheduled_since: Option<Timestamp>,
    pub(crate) is_suspended: bool,
}

/// Scheduled times that had no run and will never have one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Missed {
    /// The number of missed times.
    pub(crate) count: u32,
    /// The latest missed time.
    pub(crate) last: Timestamp,
}
