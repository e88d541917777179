//! The input of a decision: the desired runs, the recorded status, the Jobs, and the runs that
//! this process has observed. It is the same for both kinds.
//!
//! Architecture Invariant: pure. The time is part of the input.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{Metadata, Resource};

use crate::{
    api::{ConcurrencyPolicy, JobReference},
    job::CachedJob,
    job_names::JobNames,
    scheduled_times::Timetable,
    unseen_jobs::UnseenJobs,
};

/// Everything that a decision reads.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    /// The resource of the schedule.
    pub(crate) resource: Resource,
    /// The metadata of the schedule.
    pub(crate) metadata: &'a Metadata,
    /// The names of the schedule's Jobs.
    pub(crate) names: JobNames<'a>,
    /// Whether no status and no run of the schedule was ever recorded or observed.
    pub(crate) is_new: bool,
    pub(crate) desired: DesiredRuns,
    pub(crate) recorded: RecordedStatus<'a>,
    /// The Jobs that the schedule controls, including those that the watch has not shown yet.
    pub(crate) jobs: &'a [Arc<CachedJob>],
    /// Names in the schedule's naming pattern that are taken by Jobs of other owners.
    pub(crate) taken_names: &'a [Arc<str>],
    /// The runs that this process has observed.
    pub(crate) runs: &'a ObservedRuns,
    /// The counter of missed runs; `None` if the status of this kind does not record which runs
    /// were counted.
    pub(crate) missed_metric: Option<&'static str>,
    pub(crate) now: Timestamp,
}

/// The runs that a spec describes.
#[derive(Debug)]
pub(crate) struct DesiredRuns {
    /// The schedules, with unique names.
    pub(crate) schedules: Vec<DesiredSchedule>,
    /// Whether all schedules are suspended.
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

/// One schedule of a spec.
#[derive(Debug)]
pub(crate) struct DesiredSchedule {
    /// The name; that of an object's only schedule is `default`.
    pub(crate) name: Arc<str>,
    /// The times of its runs, or why the schedule is invalid.
    pub(crate) timetable: Result<Timetable, Fault>,
    /// Whether this schedule alone is suspended.
    pub(crate) suspend: bool,
}

impl DesiredRuns {
    /// Returns whether a schedule starts no runs.
    pub(crate) fn is_suspended(&self, schedule: &DesiredSchedule) -> bool {
        self.suspend || schedule.suspend
    }

    /// Returns whether no schedule starts runs.
    pub(crate) fn is_wholly_suspended(&self) -> bool {
        self.schedules.iter().all(|schedule| self.is_suspended(schedule))
    }
}

/// A problem of an object, reported as an event and a condition.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The reason, in `CamelCase`.
    pub(crate) reason: &'static str,
    /// The message for people.
    pub(crate) message: String,
}

/// The facts that a status records.
#[derive(Clone, Debug)]
pub(crate) struct RecordedStatus<'a> {
    /// The Jobs that were active when the status was written.
    pub(crate) active: &'a [JobReference],
    /// The facts about each schedule of the spec, in its order.
    pub(crate) schedules: Vec<RecordedSchedule>,
    /// When the last successful Job finished.
    pub(crate) last_success: Option<Timestamp>,
    /// When the last failed Job finished.
    pub(crate) last_failure: Option<Timestamp>,
    /// The last value of the run-now annotation for which a Job was created.
    pub(crate) last_run_now: Option<&'a str>,
    /// The reason and message of the condition Ready.
    pub(crate) last_reported: Option<(&'a str, &'a str)>,
}

/// The facts that a status records about one schedule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordedSchedule {
    /// The last scheduled time for which a Job was created.
    pub(crate) last_schedule: Option<Timestamp>,
    /// The last scheduled time that was reported as missed.
    pub(crate) last_missed: Option<Timestamp>,
    /// The time from which the current schedule applies, if that is later than the object's
    /// creation.
    pub(crate) scheduled_since: Option<Timestamp>,
    /// Whether the status was written while the schedule was suspended.
    pub(crate) was_suspended: bool,
}

/// Facts about an object that this process observed, and that its status and Jobs may no longer
/// show.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedRuns {
    /// The facts about each schedule of which any is known.
    pub(crate) schedules: Vec<ObservedSchedule>,
    /// The last value of the run-now annotation for which a Job was observed.
    pub(crate) last_run_now: Option<Box<str>>,
    /// Whether the last status could not be written, and the object has not changed since.
    pub(crate) is_status_refused: bool,
    /// The Jobs that this process has created and the watch has not shown yet.
    pub(crate) unseen: UnseenJobs,
    /// The UIDs of cached Jobs that this process has deleted, until the watch shows that.
    pub(crate) deleted: BTreeSet<Arc<str>>,
}

/// Facts about one schedule that this process observed.
#[derive(Clone, Debug)]
pub(crate) struct ObservedSchedule {
    pub(crate) name: Arc<str>,
    /// When the schedule last changed.
    pub(crate) rescheduled: Option<Timestamp>,
    /// When a change was found that this process has not seen, and that no status records. Another
    /// process may have recorded it since.
    pub(crate) found_changed: Option<Timestamp>,
    /// The latest scheduled time for which a Job was observed.
    pub(crate) last_schedule: Option<Timestamp>,
}

impl ObservedRuns {
    /// Returns whether no run was observed.
    pub(crate) fn is_empty(&self) -> bool {
        let mut schedules = self.schedules.iter();
        schedules.all(|schedule| schedule.last_schedule.is_none()) && self.last_run_now.is_none()
    }

    /// Returns when a schedule last changed.
    pub(crate) fn rescheduled(&self, name: &str) -> Option<Timestamp> {
        self.schedule(name)?.rescheduled
    }

    /// Returns since when a schedule applies that no status records.
    pub(crate) fn unrecorded_since(&self, name: &str) -> Option<Timestamp> {
        let schedule = self.schedule(name)?;
        schedule.rescheduled.max(schedule.found_changed)
    }

    /// Returns the latest scheduled time of a schedule for which a Job was observed.
    pub(crate) fn last_schedule(&self, name: &str) -> Option<Timestamp> {
        self.schedule(name)?.last_schedule
    }

    /// Returns the facts about a schedule, to change them.
    pub(crate) fn schedule_mut(&mut self, name: &str) -> &mut ObservedSchedule {
        let known = self.schedules.iter().position(|schedule| *schedule.name == *name);
        let index = known.unwrap_or_else(|| {
            self.schedules.push(ObservedSchedule {
                name: name.into(),
                rescheduled: None,
                found_changed: None,
                last_schedule: None,
            });
            self.schedules.len() - 1
        });
        &mut self.schedules[index]
    }

    fn schedule(&self, name: &str) -> Option<&ObservedSchedule> {
        self.schedules.iter().find(|schedule| *schedule.name == *name)
    }
}
