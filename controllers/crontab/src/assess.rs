//! Assesses an input: which runs are due, pending, blocked or missed, and which Jobs are too old.
//! Each conclusion is computed here once, and the plans only read it.
//!
//! Architecture Invariant: pure. The time is part of the input.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::ConcurrencyPolicy;
use portreeve_reconcile::Next;

use crate::{
    input::{Fault, Input},
    job::{CachedJob, Origin, Run},
    job_summary::{JobSummary, summarize},
    missed::{Missed, missed},
    scheduled_times::{ScheduledTimes, Timetable},
};

/// The number of missed start times above which a warning is sent, as in kube-controller-manager.
const TOO_MANY_MISSED: u32 = 100;

/// A schedule at one point in time: an input and everything that follows from it.
#[derive(Debug)]
pub(crate) struct Assessment<'a> {
    pub(crate) input: &'a Input<'a>,
    /// What is wrong with the spec.
    pub(crate) spec_fault: Option<Fault>,
    /// The Jobs by state, and the last runs, including those that only this process has observed.
    pub(crate) summary: JobSummary<'a>,
    /// The scheduled times around now; `None` while the schedule is suspended, terminating or
    /// invalid.
    pub(crate) times: Option<ScheduledTimes>,
    /// When to decide again: at the next scheduled time, or when the deadline of the due time ends,
    /// if that is earlier.
    pub(crate) next: Next,
    /// The time from which the current schedule applies, if that is later than the object's
    /// creation.
    pub(crate) scheduled_since: Option<Timestamp>,
    /// The runs that should start and have no Job yet, in the order in which they start.
    pub(crate) pending_runs: Vec<PendingRun>,
    /// Whether pending runs must wait for another run to end.
    pub(crate) is_blocked: bool,
    /// Whether pending runs must wait until the status records the runs that they replace. Once
    /// their Jobs are deleted, nothing else records these runs, and they would start again.
    pub(crate) replaces_unrecorded_job: bool,
    /// The times since the recorded status that had no run and will never have one.
    pub(crate) missed: Option<Missed>,
    /// Whether the due run follows so many missed times that the clock or the deadline may be
    /// wrong.
    pub(crate) too_many_missed: bool,
    /// The finished Jobs above the history limits that may be deleted, the oldest first.
    pub(crate) jobs_over_history_limit: Vec<&'a Arc<CachedJob>>,
}

/// A run that should start: the due one, or the one that the run-now annotation requests.
#[derive(Debug)]
pub(crate) struct PendingRun {
    pub(crate) run: Run,
    pub(crate) job_name: String,
    /// Whether another Job has this name: a Job of another owner, or of another run, such as a
    /// run-now value with the same hash.
    pub(crate) is_name_taken: bool,
}

impl<'a> Assessment<'a> {
    pub(crate) fn new(input: &'a Input<'a>) -> Self {
        let Input { desired, recorded, .. } = input;
        let run_now = desired.run_now.as_deref();
        let mut summary = summarize(input.names, *recorded, run_now, input.jobs, input.now);
        summary.add_observed_runs(input.runs, run_now);
        if input.is_new {
            // The value may come from a backup or a copy of another object.
            summary.last_run_now = run_now;
        }

        let is_enabled = !desired.suspend && !input.metadata.is_terminating();
        let timetable = desired.timetable.as_ref().ok().filter(|_| is_enabled);
        let times = timetable.map(|timetable| current_times(input, timetable, &mut summary));
        let due = times.and_then(|times| times.due);
        let scheduled_since = scheduled_since(input, times, summary.last_schedule);
        let recorded_until = earliest_time(input, recorded.last_schedule, scheduled_since);

        let mut active = summary.active.iter();
        Self {
            input,
            spec_fault: spec_fault(input, times),
            next: next_decision(times),
            pending_runs: pending_runs(input, due, summary.last_run_now),
            is_blocked: desired.concurrency == ConcurrencyPolicy::Forbid && !summary.active.is_empty(),
            replaces_unrecorded_job: desired.concurrency == ConcurrencyPolicy::Replace
                && active.any(|job| !is_recorded(input, job)),
            missed: timetable
                .zip(times)
                .and_then(|(timetable, times)| missed(input, timetable, times, recorded_until, summary.last_schedule)),
            too_many_missed: due
                .and(timetable)
                .is_some_and(|timetable| timetable.count_startable(recorded_until, input.now) > TOO_MANY_MISSED),
            jobs_over_history_limit: jobs_over_history_limit(input, &summary),
            scheduled_since,
            times,
            summary,
        }
    }
}

/// Returns what is wrong with the spec.
fn spec_fault(input: &Input<'_>, times: Option<ScheduledTimes>) -> Option<Fault> {
    let timetable = match &input.desired.timetable {
        Ok(timetable) => timetable,
        Err(fault) => return Some(fault.clone()),
    };
    let times = times?;
    (times.next.is_none() && times.due.is_none()).then(|| Fault {
        reason: "InvalidSchedule",
        message: format!(
            "invalid schedule: {} : no run within five years, because no day matches all of its fields",
            timetable.text
        ),
    })
}

/// Returns the scheduled times after the last run. If the run of the due time has already started,
/// records it in the summary as the last one.
fn current_times(input: &Input<'_>, timetable: &Timetable, summary: &mut JobSummary<'_>) -> ScheduledTimes {
    let times_after = |last_schedule| {
        let base = earliest_time(input, last_schedule, input.recorded.scheduled_since);
        timetable.times(base, input.now)
    };
    let times = times_after(summary.last_schedule);
    match times.due.filter(|due| has_started(input, summary.last_schedule, *due)) {
        Some(due) => {
            summary.last_schedule = Some(due);
            times_after(summary.last_schedule)
        }
        None => times,
    }
}

/// Returns whether a Job was already created for `due` or for another time with the same Job name.
/// An `@every` schedule may have two times in one minute. They share a name and so a Job, even if
/// that Job has been deleted since.
fn has_started(input: &Input<'_>, last_schedule: Option<Timestamp>, due: Timestamp) -> bool {
    let name = |slot| input.names.scheduled(slot);
    let last = last_schedule.map(name);
    last.is_some_and(|last| last == name(due)) || owns_job(input, &name(due))
}

fn owns_job(input: &Input<'_>, name: &str) -> bool {
    input.jobs.iter().any(|job| job.name() == name)
}

/// Returns the time after which scheduled times count: `last_schedule`, or else the creation. If
/// the current schedule applies since a later time, returns that time.
fn earliest_time(input: &Input<'_>, last_schedule: Option<Timestamp>, scheduled_since: Option<Timestamp>) -> Timestamp {
    let created = input.metadata.creation_timestamp.unwrap_or(input.now);
    let bounds = [scheduled_since, input.runs.rescheduled];
    let bounds = bounds.into_iter().flatten();
    bounds.fold(last_schedule.unwrap_or(created), Timestamp::max)
}

/// Returns the time from which the current schedule applies. Times that passed while it was
/// suspended do not count as missed. A run may still start for the latest one.
fn scheduled_since(
    input: &Input<'_>,
    times: Option<ScheduledTimes>,
    last_schedule: Option<Timestamp>,
) -> Option<Timestamp> {
    let recorded = input.recorded.scheduled_since;
    match times.filter(|_| input.recorded.was_suspended) {
        Some(times) => recorded.max(times.expired).max(last_schedule),
        None => recorded,
    }
}

fn next_decision(times: Option<ScheduledTimes>) -> Next {
    let times = times.and_then(|times| times.next.into_iter().chain(times.until).min());
    times.map_or(Next::OnChange, Next::At)
}

fn pending_runs(input: &Input<'_>, due: Option<Timestamp>, last_run_now: Option<&str>) -> Vec<PendingRun> {
    if input.metadata.is_terminating() {
        return Vec::new();
    }
    let due = due.map(Run::Scheduled);
    let requested = input.desired.run_now.clone();
    let requested = requested.filter(|value| last_run_now != Some(&**value)).map(Run::Now);
    let runs = if input.desired.concurrency == ConcurrencyPolicy::Forbid {
        // If runs take longer than the interval between them, a scheduled run is always due. So a
        // requested run goes first; otherwise it would never start.
        [requested, due]
    } else {
        // Under Replace a later run replaces an earlier one, so the requested run goes last.
        [due, requested]
    };
    let pending = |run: Run| {
        let job_name = run.job_name(input.names);
        let is_foreign = input.taken_names.iter().any(|taken| **taken == *job_name);
        PendingRun {
            is_name_taken: is_foreign || owns_job(input, &job_name),
            run,
            job_name,
        }
    };
    runs.into_iter().flatten().map(pending).collect()
}

/// Returns the finished Jobs above the history limits, the oldest first.
///
/// Jobs whose runs the status does not record yet are kept.
fn jobs_over_history_limit<'a>(input: &Input<'_>, summary: &JobSummary<'a>) -> Vec<&'a Arc<CachedJob>> {
    if input.metadata.is_terminating() {
        return Vec::new();
    }
    let excess = |jobs: &[&'a Arc<CachedJob>], keep: Option<usize>| {
        let excess = keep.map_or(0, |keep| jobs.len().saturating_sub(keep));
        jobs[..excess].to_vec()
    };
    let successful = excess(&summary.successful, input.desired.keep_successful);
    let failed = excess(&summary.failed, input.desired.keep_failed);
    let old = successful.into_iter().chain(failed);
    old.filter(|job| is_recorded(input, job)).collect()
}

/// Returns whether the status records the run of this Job. Until then the Job is the only proof of
/// the run.
fn is_recorded(input: &Input<'_>, job: &CachedJob) -> bool {
    let recorded = &input.recorded;
    match job.origin(&input.metadata.name) {
        Origin::Scheduled(slot) => recorded.last_schedule.is_some_and(|stored| slot <= stored),
        Origin::RunNow(value) => {
            input.desired.run_now.as_deref() != Some(&*value) || recorded.last_run_now == Some(&*value)
        }
        Origin::Manual | Origin::Unknown => true,
    }
}
