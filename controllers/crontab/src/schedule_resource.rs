//! What the engine has to know of a kind of schedule: what it asks for, what its status remembers, and how both are written.

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
    /// Where its objects are served.
    const RESOURCE: Resource;
    /// The histogram of how late Jobs are created.
    const SKEW_METRIC: &'static str;
    /// The counter of missed runs, for a kind whose status remembers which were counted.
    const MISSED_METRIC: Option<&'static str>;

    /// What the object asks for.
    fn desired(&self) -> DesiredSchedule;

    /// What its status remembers. `rescheduled`: since when the schedule is the present one, should the status know another.
    fn recorded(&self, rescheduled: Timestamp) -> RecordedStatus<'_>;

    /// The Job of a run.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the template.
    fn job(&self, run: &Run) -> Result<Object, Fault>;

    /// The status that says what was found; `None` when it says so already.
    fn status(&self, report: &Report<'_>, now: Timestamp) -> Option<Value>;
}

/// What a schedule asks for.
#[derive(Clone, Debug)]
pub(crate) struct DesiredSchedule {
    /// When it runs, or what is wrong with it.
    pub(crate) timetable: Result<Timetable, Fault>,
    pub(crate) suspend: bool,
    pub(crate) concurrency: ConcurrencyPolicy,
    /// How many successful Jobs are kept; `None`: all.
    pub(crate) keep_successful: Option<usize>,
    /// How many failed Jobs are kept; `None`: all.
    pub(crate) keep_failed: Option<usize>,
    /// The value of the annotation that asks for a run now.
    pub(crate) run_now: Option<Arc<str>>,
    /// What does not stop it, but should be known.
    pub(crate) warning: Option<Fault>,
}

/// What is wrong with an object, for an event and a condition.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fault {
    /// The reason, in CamelCase.
    pub(crate) reason: &'static str,
    /// The sentence.
    pub(crate) message: String,
}

/// What a status remembers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedStatus<'a> {
    /// The Jobs that were active.
    pub(crate) active: &'a [JobReference],
    /// The last scheduled time that was served.
    pub(crate) last_schedule: Option<Timestamp>,
    /// When the last successful Job ended.
    pub(crate) last_success: Option<Timestamp>,
    /// When the last failed Job ended.
    pub(crate) last_failure: Option<Timestamp>,
    /// The last scheduled time that was reported as missed.
    pub(crate) last_missed: Option<Timestamp>,
    /// The value of the annotation that was acted on last.
    pub(crate) last_run_now: Option<&'a str>,
    /// Since when the schedule is the present one, where that is later than the object's creation.
    pub(crate) scheduled_since: Option<Timestamp>,
    /// Whether the status was written while it was suspended.
    pub(crate) was_suspended: bool,
    /// What was last said to be wrong, as reason and message.
    pub(crate) last_reported: Option<(&'a str, &'a str)>,
}

/// What was found out about an object: what its status is to say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report<'a> {
    pub(crate) summary: &'a JobSummary<'a>,
    /// Absent when there is no timetable to read, or it is suspended.
    pub(crate) times: Option<&'a ScheduledTimes>,
    pub(crate) missed: Option<Missed>,
    /// What is wrong with the object, or with the Job that it asks for.
    pub(crate) fault: Option<&'a Fault>,
    /// Whether the fault lies in the spec.
    pub(crate) is_valid: bool,
    /// Since when the schedule is the present one, where that is later than the object's creation.
    pub(crate) scheduled_since: Option<Timestamp>,
    pub(crate) is_suspended: bool,
}

/// Scheduled times for which nothing ran and nothing will.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Missed {
    /// How many.
    pub(crate) count: u32,
    /// The latest.
    pub(crate) last: Timestamp,
}
