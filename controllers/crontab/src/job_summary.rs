//! Summarizes the Jobs of an object and compares them with its status.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::Metadata;
use portreeve_informer::Projection;

use crate::{
    api::JobReference,
    input::Input,
    job::{CachedJob, FinishedStatus, JOBS},
    origin::Origin,
    replaced_runs::ReplacedRuns,
};

/// The Jobs of an object by state, and the times that follow from them.
#[derive(Debug)]
pub(crate) struct JobSummary<'a> {
    /// Jobs that this controller started and that have not finished, the oldest first.
    pub(crate) active: Vec<&'a Arc<CachedJob>>,
    /// Jobs that the status lists as active and that have finished since.
    pub(crate) completed: Vec<(&'a Arc<CachedJob>, FinishedStatus)>,
    /// Jobs that the status lists as active and that are not in the cache.
    pub(crate) missing: Vec<&'a JobReference>,
    /// Unfinished Jobs that the schedule controls, but that neither this controller nor a user is
    /// known to have started.
    pub(crate) unexpected: Vec<&'a Arc<CachedJob>>,
    /// Successful Jobs, the oldest first.
    pub(crate) successful: Vec<&'a Arc<CachedJob>>,
    /// Failed Jobs, the oldest first.
    pub(crate) failed: Vec<&'a Arc<CachedJob>>,
    /// The number of active Jobs of each schedule, and the last scheduled time for which a Job was
    /// created, in the order of the spec.
    pub(crate) schedules: Vec<ScheduleSummary>,
    pub(crate) last_success: Option<Timestamp>,
    pub(crate) last_failure: Option<Timestamp>,
    /// The last value of the run-now annotation for which a Job was created.
    pub(crate) last_run_now: Option<&'a str>,
}

/// The Jobs of one schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduleSummary {
    /// The last scheduled time for which a Job was created.
    pub(crate) last_schedule: Option<Timestamp>,
    /// The number of active Jobs.
    pub(crate) active: i64,
}

/// Summarizes the Jobs that an object controls.
pub(crate) fn summarize<'a>(input: &'a Input<'a>) -> JobSummary<'a> {
    let Input {
        names,
        desired,
        recorded,
        jobs,
        ..
    } = input;
    let run_now = desired.run_now.as_deref();
    let mut sorted: Vec<_> = jobs.iter().collect();
    sorted.sort_by(|a, b| (a.start_time(), a.name()).cmp(&(b.start_time(), b.name())));
    let mut summary = JobSummary {
        active: Vec::new(),
        completed: Vec::new(),
        missing: Vec::new(),
        unexpected: Vec::new(),
        successful: Vec::new(),
        failed: Vec::new(),
        schedules: recorded
            .schedules
            .iter()
            .map(|recorded| ScheduleSummary {
                last_schedule: recorded.last_schedule,
                active: 0,
            })
            .collect(),
        last_success: recorded.last_success,
        last_failure: recorded.last_failure,
        last_run_now: recorded.last_run_now,
    };
    // The Job for the current value is recognized by its name even without its annotation.
    let run_now_job = run_now.map(|value| names.run_now(value));
    for job in sorted {
        let was_active = recorded.active.iter().any(|active| *active.uid == *job.metadata().uid);
        let origin = job.origin(names.owner);
        if let Some(schedule) = summary.schedule_mut(input, &origin) {
            schedule.active += i64::from(job.finished_status().is_none());
        }
        if matches!(origin, Origin::Unknown | Origin::Manual) && run_now_job.as_deref() == Some(job.name()) {
            summary.last_run_now = run_now;
        }
        summary.record(input, &origin);
        for run in job.replaced_runs().into_iter().flat_map(ReplacedRuns::iter) {
            summary.record(input, &run);
        }
        summary.classify(job, was_active, &origin);
    }
    let is_gone = |reference: &&JobReference| !jobs.iter().any(|job| *job.metadata().uid == *reference.uid);
    summary.missing = recorded.active.iter().filter(is_gone).collect();
    summary
}

impl<'a> JobSummary<'a> {
    /// Adds the runs that this process observed, even if their Jobs are gone.
    pub(crate) fn add_observed_runs(&mut self, input: &'a Input<'a>) {
        let (observed_runs, run_now) = (input.runs, input.desired.run_now.as_deref());
        for (schedule, summary) in input.desired.schedules.iter().zip(&mut self.schedules) {
            summary.last_schedule = summary.last_schedule.max(observed_runs.last_schedule(&schedule.name));
        }
        if run_now.is_some() && observed_runs.last_run_now.as_deref() == run_now {
            self.last_run_now = run_now;
        }
    }

    /// Records a run that a Job proves.
    fn record(&mut self, input: &'a Input<'a>, run: &Origin) {
        match run {
            // Ignore a time in the future. Otherwise anyone who may create Jobs could stop the
            // schedule with a Job whose name contains a late time.
            Origin::Scheduled(_, slot) if *slot <= input.now => {
                if let Some(schedule) = self.schedule_mut(input, run) {
                    schedule.last_schedule = schedule.last_schedule.max(Some(*slot));
                }
            }
            Origin::RunNow(value) if input.desired.run_now.as_deref() == Some(&**value) => {
                self.last_run_now = input.desired.run_now.as_deref();
            }
            _ => {}
        }
    }

    /// Returns the schedule that a run belongs to, if it is still in the spec.
    fn schedule_mut(&mut self, input: &Input<'_>, run: &Origin) -> Option<&mut ScheduleSummary> {
        let Origin::Scheduled(name, _) = run else {
            return None;
        };
        let mut schedules = input.desired.schedules.iter();
        let index = schedules.position(|schedule| *schedule.name == **name)?;
        self.schedules.get_mut(index)
    }

    fn classify(&mut self, job: &'a Arc<CachedJob>, was_active: bool, origin: &Origin) {
        match job.finished_status() {
            Some(end) => {
                if was_active {
                    self.completed.push((job, end));
                }
                match end {
                    FinishedStatus::Complete(time) => {
                        self.successful.push(job);
                        self.last_success = self.last_success.max(time);
                    }
                    FinishedStatus::Failed(time) => {
                        self.failed.push(job);
                        self.last_failure = self.last_failure.max(time);
                    }
                }
            }
            None => match origin {
                Origin::Scheduled(..) | Origin::RunNow(_) => self.active.push(job),
                _ if was_active => self.active.push(job),
                Origin::Unknown => self.unexpected.push(job),
                Origin::Manual => {}
            },
        }
    }

    /// Returns references to the active Jobs, as the status lists them.
    pub(crate) fn active_references(&self) -> Vec<JobReference> {
        let active = self.active.iter().map(|job| job.metadata());
        let reference = |job: &Metadata| JobReference {
            api_version: JOBS.api_version(),
            kind: JOBS.kind.to_string(),
            name: job.name.to_string(),
            namespace: job.namespace.as_deref().unwrap_or_default().to_owned(),
            uid: job.uid.to_string(),
        };
        active.map(reference).collect()
    }
}
