//! Assesses an input: which runs are due, pending, blocked or missed, and which Jobs are too old.
//! Each conclusion is computed here once, and the plans only read it.
//!
//! Architecture Invariant: pure. The time is part of the input.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_informer::Projection;
use portreeve_reconcile::Next;

use crate::{
    api::ConcurrencyPolicy,
    input::{Fault, Input, RecordedSchedule},
    job::{CachedJob, Run},
    job_summary::{JobSummary, summarize},
    missed::{Missed, missed},
    origin::Origin,
    replaced_runs::ReplacedRuns,
    scheduled_times::{ScheduledTimes, Timetable},
};

/// The number of missed start times above which a warning is sent, as in kube-controller-manager.
const TOO_MANY_MISSED: u32 = 100;

/// An object at one point in time: an input and everything that follows from it.
#[derive(Debug)]
pub(crate) struct Assessment<'a> {
    pub(crate) input: &'a Input<'a>,
    /// What is wrong with the spec: the fault of the first schedule that has one.
    pub(crate) spec_fault: Option<Fault>,
    /// The Jobs by state, and the last runs, including those that only this process has observed.
    pub(crate) summary: JobSummary<'a>,
    /// The schedules, in the order of the spec.
    pub(crate) schedules: Vec<AssessedSchedule>,
    /// When to decide again: at the next scheduled time, or earlier, when the deadline of a due
    /// time ends or a Job must be read again.
    pub(crate) next: Next,
    /// The runs that should start and have no Job yet, in the order in which they start.
    pub(crate) pending_runs: Vec<PendingRun>,
    /// Whether pending runs must wait for another run to end.
    pub(crate) is_blocked: bool,
    /// What a pending run replaces: the active Jobs, and their runs as far as the status does not
    /// record them yet. Once these Jobs are deleted, nothing else records these runs, and they
    /// would start again.
    pub(crate) replaced_runs: ReplacedRuns,
    /// The active Jobs that another Job has replaced. They exist if their deletion failed.
    pub(crate) replaced_jobs: Vec<&'a Arc<CachedJob>>,
    /// The finished Jobs above the history limits that may be deleted, the oldest first.
    pub(crate) jobs_over_history_limit: Vec<&'a Arc<CachedJob>>,
}

/// A schedule at one point in time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssessedSchedule {
    /// The scheduled times around now; `None` while the schedule is suspended, terminating or
    /// invalid.
    pub(crate) times: Option<ScheduledTimes>,
    /// The last scheduled time for which a Job was created.
    pub(crate) last_schedule: Option<Timestamp>,
    /// The time from which the current schedule applies, if that is later than the object's
    /// creation.
    pub(crate) scheduled_since: Option<Timestamp>,
    /// The times since the recorded status that had no run and will never have one.
    pub(crate) missed: Option<Missed>,
    /// Whether the due run follows so many missed times that the clock or the deadline may be
    /// wrong.
    pub(crate) too_many_missed: bool,
}

/// A run that should start: the due one, or the one that the run-now annotation requests.
#[derive(Debug)]
pub(crate) struct PendingRun {
    pub(crate) run: Run,
    pub(crate) job_name: String,
    /// Whether another Job has this name: a Job of another owner, or of another run, such as a
    /// run-now value with the same hash.
    pub(crate) is_name_taken: bool,
    /// Whether the run follows so many missed times that the clock or the deadline may be wrong.
    pub(crate) follows_too_many_missed: bool,
}

impl<'a> Assessment<'a> {
    pub(crate) fn new(input: &'a Input<'a>) -> Self {
        let desired = &input.desired;
        let run_now = desired.run_now.as_deref();
        let mut summary = summarize(input);
        summary.add_observed_runs(input);
        if input.is_new {
            // The value may come from a backup or a copy of another object.
            summary.last_run_now = run_now;
        }
        let last_runs = summary.schedules.iter().map(|schedule| schedule.last_schedule);
        let schedules: Vec<_> = last_runs
            .enumerate()
            .map(|(index, last_schedule)| assess_schedule(input, index, last_schedule))
            .collect();

        Self {
            input,
            spec_fault: spec_fault(input, &schedules),
            next: next_decision(input, &schedules),
            pending_runs: pending_runs(input, &schedules, summary.last_run_now),
            is_blocked: desired.concurrency == ConcurrencyPolicy::Forbid && !summary.active.is_empty(),
            replaced_runs: replaced_runs(input, &summary),
            replaced_jobs: replaced_jobs(input, &summary),
            jobs_over_history_limit: jobs_over_history_limit(input, &summary),
            schedules,
            summary,
        }
    }

    /// Returns the missed times of all schedules, with the names of the schedules.
    pub(crate) fn missed(&self) -> impl Iterator<Item = (&Arc<str>, Missed)> {
        let schedules = self.input.desired.schedules.iter().zip(&self.schedules);
        schedules.filter_map(|(desired, assessed)| Some((&desired.name, assessed.missed?)))
    }
}

/// Assesses the schedule at this index of the spec.
fn assess_schedule(input: &Input<'_>, index: usize, last_schedule: Option<Timestamp>) -> AssessedSchedule {
    let (desired, recorded) = (&input.desired.schedules[index], input.recorded.schedules[index]);
    let is_enabled = !input.desired.is_suspended(desired) && !input.metadata.is_terminating();
    let timetable = desired.timetable.as_ref().ok().filter(|_| is_enabled);
    let mut last_schedule = last_schedule;
    let times = timetable.map(|timetable| current_times(input, index, timetable, &mut last_schedule));
    let due = times.and_then(|times| times.due);
    let scheduled_since = scheduled_since(recorded, times, last_schedule);
    let recorded_until = earliest_time(input, index, recorded.last_schedule, scheduled_since);
    let last_until = earliest_time(input, index, last_schedule, scheduled_since);
    AssessedSchedule {
        missed: timetable
            .zip(times)
            .and_then(|(timetable, times)| missed(input, index, timetable, times, recorded_until, last_schedule)),
        too_many_missed: due
            .and(timetable)
            .is_some_and(|timetable| timetable.count_startable(last_until, input.now) > TOO_MANY_MISSED),
        times,
        last_schedule,
        scheduled_since,
    }
}

/// Returns what is wrong with the spec.
fn spec_fault(input: &Input<'_>, schedules: &[AssessedSchedule]) -> Option<Fault> {
    let mut faults = input
        .desired
        .schedules
        .iter()
        .zip(schedules)
        .filter_map(|(desired, assessed)| {
            let timetable = match &desired.timetable {
                Ok(timetable) => timetable,
                Err(fault) => return Some(fault.clone()),
            };
            let times = assessed.times?;
            (times.next.is_none() && times.due.is_none()).then(|| Fault {
                reason: "InvalidSchedule",
                message: format!(
                    "invalid schedule: {} : no run within five years, because no day matches all of its fields",
                    timetable.text
                ),
            })
        });
    faults.next()
}

/// Returns the scheduled times after the last run. If the run of the due time has already started,
/// makes it the last one.
fn current_times(
    input: &Input<'_>,
    index: usize,
    timetable: &Timetable,
    last_schedule: &mut Option<Timestamp>,
) -> ScheduledTimes {
    let since = input.recorded.schedules[index].scheduled_since;
    let times_after = |last_schedule| timetable.times(earliest_time(input, index, last_schedule, since), input.now);
    let times = times_after(*last_schedule);
    match times.due.filter(|due| has_started(input, index, *last_schedule, *due)) {
        Some(due) => {
            *last_schedule = Some(due);
            times_after(*last_schedule)
        }
        None => times,
    }
}

/// Returns whether a Job was already created for `due` or for another time with the same Job name.
/// An `@every` schedule may have two times in one minute. They share a name and so a Job, even if
/// that Job has been deleted since.
fn has_started(input: &Input<'_>, index: usize, last_schedule: Option<Timestamp>, due: Timestamp) -> bool {
    let name = |slot| input.names.scheduled(&input.desired.schedules[index].name, slot);
    let last = last_schedule.map(name);
    last.is_some_and(|last| last == name(due)) || owns_job(input, &name(due))
}

fn owns_job(input: &Input<'_>, name: &str) -> bool {
    input.jobs.iter().any(|job| job.name() == name)
}

/// Returns the time after which the times of a schedule count: `last_schedule`, or else the
/// creation. If the current schedule applies since a later time, returns that time.
fn earliest_time(
    input: &Input<'_>,
    index: usize,
    last_schedule: Option<Timestamp>,
    scheduled_since: Option<Timestamp>,
) -> Timestamp {
    let created = input.metadata.creation_timestamp.unwrap_or(input.now);
    let rescheduled = input.runs.rescheduled(&input.desired.schedules[index].name);
    let bounds = [scheduled_since, rescheduled].into_iter().flatten();
    bounds.fold(last_schedule.unwrap_or(created), Timestamp::max)
}

/// Returns the time from which the current schedule applies. Times that passed while it was
/// suspended do not count as missed. A run may still start for the latest one.
fn scheduled_since(
    recorded: RecordedSchedule,
    times: Option<ScheduledTimes>,
    last_schedule: Option<Timestamp>,
) -> Option<Timestamp> {
    match times.filter(|_| recorded.was_suspended) {
        Some(times) => recorded.scheduled_since.max(times.expired).max(last_schedule),
        None => recorded.scheduled_since,
    }
}

fn next_decision(input: &Input<'_>, schedules: &[AssessedSchedule]) -> Next {
    let times = schedules.iter().filter_map(|schedule| schedule.times);
    let next = times.flat_map(|times| times.next.into_iter().chain(times.until));
    let next = next.chain(input.runs.unseen.next_read(input.now)).min();
    next.map_or(Next::OnChange, Next::At)
}

/// Returns the runs without a Job. Those of schedules are in the order of their times, and those of
/// one time in the order of the spec.
fn pending_runs(input: &Input<'_>, schedules: &[AssessedSchedule], last_run_now: Option<&str>) -> Vec<PendingRun> {
    if input.metadata.is_terminating() {
        return Vec::new();
    }
    let pending = |run: Run, follows_too_many_missed| {
        let job_name = run.job_name(input.names);
        let is_foreign = input.taken_names.iter().any(|taken| **taken == *job_name);
        PendingRun {
            is_name_taken: is_foreign || owns_job(input, &job_name),
            follows_too_many_missed,
            run,
            job_name,
        }
    };
    let due = input.desired.schedules.iter().zip(schedules);
    let mut due: Vec<_> = due
        .filter_map(|(desired, assessed)| Some((assessed.times?.due?, desired, assessed.too_many_missed)))
        .collect();
    due.sort_by_key(|(slot, ..)| *slot);
    let due = due
        .into_iter()
        .map(|(slot, desired, too_many)| pending(Run::Scheduled(Arc::clone(&desired.name), slot), too_many));
    let requested = input.desired.run_now.clone();
    let requested = requested.filter(|value| last_run_now != Some(&**value));
    let requested = requested.map(|value| pending(Run::Now(value), false));
    if input.desired.concurrency == ConcurrencyPolicy::Forbid {
        // If runs take longer than the interval between them, a scheduled run is always due. So a
        // requested run goes first; otherwise it would never start.
        requested.into_iter().chain(due).collect()
    } else {
        // Under Replace a later run replaces an earlier one, so the requested run goes last.
        due.chain(requested).collect()
    }
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

/// Returns what a pending run replaces.
fn replaced_runs(input: &Input<'_>, summary: &JobSummary<'_>) -> ReplacedRuns {
    if input.desired.concurrency != ConcurrencyPolicy::Replace {
        return ReplacedRuns::default();
    }
    let active = summary.active.iter();
    let runs = active.clone().flat_map(|job| unrecorded_runs(input, job));
    ReplacedRuns::of(runs, active.map(|job| (*job.metadata().uid).into()))
}

/// Returns the active Jobs that another Job has replaced.
fn replaced_jobs<'a>(input: &Input<'_>, summary: &JobSummary<'a>) -> Vec<&'a Arc<CachedJob>> {
    if input.desired.concurrency != ConcurrencyPolicy::Replace || input.metadata.is_terminating() {
        return Vec::new();
    }
    let replaced: Vec<_> = input.jobs.iter().filter_map(|job| job.replaced_runs()).collect();
    let is_replaced = |job: &&Arc<CachedJob>| replaced.iter().any(|runs| runs.includes_job(&job.metadata().uid));
    summary.active.iter().copied().filter(is_replaced).collect()
}

/// Returns whether the status records the runs that this Job proves. Until then the Job is the only
/// proof.
pub(crate) fn is_recorded(input: &Input<'_>, job: &CachedJob) -> bool {
    unrecorded_runs(input, job).next().is_none()
}

/// Iterates over the runs that this Job proves and that the status does not record.
fn unrecorded_runs(input: &Input<'_>, job: &CachedJob) -> impl Iterator<Item = Origin> {
    let runs = job.runs(&input.metadata.name);
    runs.filter(|run| !is_recorded_run(input, run))
}

fn is_recorded_run(input: &Input<'_>, run: &Origin) -> bool {
    let recorded = &input.recorded;
    match run {
        Origin::Scheduled(name, slot) => {
            let index = input
                .desired
                .schedules
                .iter()
                .position(|schedule| *schedule.name == **name);
            // The run of a schedule that is no longer in the spec cannot start again.
            index.is_none_or(|index| {
                recorded.schedules[index]
                    .last_schedule
                    .is_some_and(|stored| *slot <= stored)
            })
        }
        Origin::RunNow(value) => {
            input.desired.run_now.as_deref() != Some(&**value) || recorded.last_run_now == Some(&**value)
        }
        Origin::Manual | Origin::Unknown => true,
    }
}
