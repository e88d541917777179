//! Decides what to do for a schedule: start the runs that are due, or else update its status. All
//! kinds share this code.
//!
//! A plan that starts Jobs does nothing else. With thousands of schedules due at once, all their
//! Jobs are created before any status is written. The names and annotations of the Jobs contain
//! their scheduled times, so the next decision derives the status from them.

use std::{iter, sync::Arc};

use jiff::Timestamp;
use portreeve_api::{ConcurrencyPolicy, JobReference, Metadata, ObjectKey};
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, EventContent, Next, Plan, Propagation, Target};

use crate::{
    job::{CachedJob, JOBS, Origin, Run},
    job_summary::{self, JobSummary},
    schedule_resource::{DesiredSchedule, Fault, Missed, RecordedStatus, Report, ScheduleResource},
    scheduled_times::{ScheduledTimes, Timetable, before},
    status,
};

/// The number of missed start times above which a warning is sent, as in kube-controller-manager.
const TOO_MANY_MISSED: u32 = 100;

/// The input of a decision: a schedule, its Jobs, and what this process has observed.
#[derive(Clone, Debug)]
pub(crate) struct Observed<K> {
    pub(crate) object: Arc<K>,
    /// The Jobs that the schedule controls.
    pub(crate) jobs: Vec<Arc<CachedJob>>,
    /// Names in the schedule's naming pattern that are taken by Jobs of other owners.
    pub(crate) taken_names: Vec<Arc<str>>,
    /// The runs that this process has observed.
    pub(crate) runs: ObservedRuns,
}

/// Facts about a schedule that this process observed, and that its status and Jobs may no longer
/// show.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedRuns {
    /// When the schedule last changed.
    pub(crate) rescheduled: Option<Timestamp>,
    /// The latest scheduled time for which a Job was observed.
    pub(crate) last_schedule: Option<Timestamp>,
    /// The last value of the run-now annotation for which a Job was observed.
    pub(crate) last_run_now: Option<Box<str>>,
}

pub(crate) fn decide<K: ScheduleResource>(observed: &Observed<K>, now: Timestamp) -> Plan {
    let desired = observed.object.desired();
    let assessment = Assessment::new(observed, &desired, now);
    let starts = assessment.starts();
    let effects = if starts.is_empty() {
        status::effects(&assessment, None)
    } else {
        starts
    };
    Plan {
        effects,
        next: assessment.next(),
    }
}

/// Returns the plan after the apiserver rejected `effect`. The plan reports the rejection; after a
/// rejected create it also updates the status and deletes old Jobs.
pub(crate) fn refused<K: ScheduleResource>(observed: &Observed<K>, effect: &Effect, why: &str, now: Timestamp) -> Plan {
    let desired = observed.object.desired();
    let assessment = Assessment::new(observed, &desired, now);
    let report = |reason| Plan::of(vec![assessment.event(warning(reason, why).report_once(why))]);
    match effect {
        Effect::Create(_) => {
            let (reason, message) = ("FailedCreate", why.to_owned());
            Plan::of(status::effects(&assessment, Some(&Fault { reason, message })))
        }
        // Send an event but set no condition: the next decision finds no fault and would reset it.
        Effect::Delete { .. } => report("FailedDelete"),
        Effect::RequireAbsent { .. } => report("FailedGet"),
        _ => Plan::nothing(),
    }
}

pub(crate) fn normal(reason: &'static str, message: impl Into<String>) -> EventContent {
    EventContent::normal(reason, "Sync", message)
}

pub(crate) fn warning(reason: &'static str, message: impl Into<String>) -> EventContent {
    EventContent::warning(reason, "Sync", message)
}

/// A schedule at one point in time, with everything that follows from its spec, status and Jobs.
pub(crate) struct Assessment<'a, K> {
    pub(crate) observed: &'a Observed<K>,
    pub(crate) desired: &'a DesiredSchedule,
    pub(crate) recorded: RecordedStatus<'a>,
    pub(crate) summary: JobSummary<'a>,
    pub(crate) timetable: Option<&'a Timetable>,
    /// `None` while the schedule is suspended, terminating or invalid.
    pub(crate) times: Option<ScheduledTimes>,
    pub(crate) now: Timestamp,
}

impl<'a, K: ScheduleResource> Assessment<'a, K> {
    fn new(observed: &'a Observed<K>, desired: &'a DesiredSchedule, now: Timestamp) -> Self {
        let recorded = observed.object.recorded(observed.runs.rescheduled.unwrap_or(now));
        let metadata = observed.object.metadata();
        let run_now = desired.run_now.as_deref();
        let mut summary = job_summary::summarize(metadata, recorded, run_now, &observed.jobs, now);
        summary.add_observed_runs(&observed.runs, run_now);
        let is_enabled = !desired.suspend && !metadata.is_terminating();
        let timetable = desired.timetable.as_ref().ok().filter(|_| is_enabled);
        let mut assessment = Self {
            observed,
            desired,
            recorded,
            summary,
            timetable,
            times: None,
            now,
        };
        assessment.update_times();
        let due = assessment.times.and_then(|times| times.due);
        if let Some(due) = due.filter(|due| assessment.has_started(*due)) {
            assessment.summary.last_schedule = Some(due);
            assessment.update_times();
        }
        if let Some(times) = assessment.times.filter(|_| assessment.recorded.was_suspended) {
            // Times that passed while the schedule was suspended do not count as missed. A run may
            // still start for the latest one.
            let last_skipped = times.expired.max(assessment.summary.last_schedule);
            assessment.recorded.scheduled_since = assessment.recorded.scheduled_since.max(last_skipped);
        }
        assessment
    }

    /// Reports whether a Job was already created for `due` or for another time with the same Job
    /// name. An `@every` schedule may have two times in one minute. They share a name and so a Job,
    /// even if that Job has been deleted since.
    fn has_started(&self, due: Timestamp) -> bool {
        let name = |slot| Run::Scheduled(slot).job_name(&self.metadata().name);
        let last = self.summary.last_schedule.map(name);
        last.is_some_and(|last| last == name(due)) || self.owns(&name(due))
    }

    fn update_times(&mut self) {
        let base = self.earliest_time(self.summary.last_schedule);
        self.times = self.timetable.map(|timetable| timetable.times(base, self.now));
    }

    /// Returns the time after which scheduled times count: the scheduled time of the last run, or
    /// else the creation. If the current schedule applies since a later time, returns that time.
    pub(crate) fn earliest_time(&self, last: Option<Timestamp>) -> Timestamp {
        let created = self.metadata().creation_timestamp.unwrap_or(self.now);
        let bounds = [self.recorded.scheduled_since, self.observed.runs.rescheduled];
        let later = |base: Timestamp, bound: Option<Timestamp>| bound.map_or(base, |bound| base.max(bound));
        bounds.into_iter().fold(last.unwrap_or(created), later)
    }

    /// Iterates over the scheduled times that have a Job.
    fn times_with_job(&self) -> impl Iterator<Item = Timestamp> {
        let name = &self.metadata().name;
        let origins = self.observed.jobs.iter().map(|job| job.origin(name));
        origins.filter_map(|origin| match origin {
            Origin::Scheduled(slot) => Some(slot),
            _ => None,
        })
    }

    /// Counts the scheduled times after `since` and up to `until` that have a Job.
    pub(crate) fn count_jobs_between(&self, since: Timestamp, until: Timestamp) -> u32 {
        let times = self.times_with_job().filter(|slot| (since < *slot) && (*slot <= until));
        u32::try_from(times.count()).unwrap_or(u32::MAX)
    }

    /// Returns the latest scheduled time after `since` and up to `until` that has no Job.
    pub(crate) fn last_without_job(&self, since: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let timetable = self.timetable?;
        let earlier = |slot: &Timestamp| timetable.latest(since, before(*slot));
        let mut times = iter::successors(timetable.latest(since, until), earlier);
        times.find(|slot| self.times_with_job().all(|started| started != *slot))
    }

    pub(crate) fn metadata(&self) -> &'a Metadata {
        self.observed.object.metadata()
    }

    pub(crate) fn target(&self) -> Target {
        Target::of(&K::RESOURCE, self.metadata())
    }

    fn owns(&self, name: &str) -> bool {
        self.observed.jobs.iter().any(|job| job.name() == name)
    }

    /// Reports whether the name of a pending run's Job is taken: by a Job of another owner, or by a
    /// Job of another run, such as a run-now value with the same hash.
    pub(crate) fn is_name_taken(&self, name: &str) -> bool {
        self.observed.taken_names.iter().any(|taken| **taken == *name) || self.owns(name)
    }

    /// Returns the runs that should start and have no Job yet: the due one, and the one that the
    /// run-now annotation requests.
    pub(crate) fn pending_runs(&self) -> Vec<Run> {
        if self.metadata().is_terminating() {
            return Vec::new();
        }
        let due = self.times.and_then(|times| times.due).map(Run::Scheduled);
        let requested = self.desired.run_now.clone();
        let requested = requested.filter(|value| self.summary.last_run_now != Some(&**value));
        let requested = requested.map(Run::Now);
        if self.desired.concurrency == ConcurrencyPolicy::Forbid {
            // If runs take longer than the interval between them, a scheduled run is always due. So
            // a requested run goes first; otherwise it would never start.
            return requested.into_iter().chain(due).collect();
        }
        // Under Replace a later run replaces an earlier one, so the requested run goes last.
        due.into_iter().chain(requested).collect()
    }

    /// Reports whether pending runs must wait for another run to end.
    pub(crate) fn is_blocked(&self) -> bool {
        self.desired.concurrency == ConcurrencyPolicy::Forbid && !self.summary.active.is_empty()
    }

    /// Reports whether a run must wait until the status records the runs that it replaces. Once
    /// their Jobs are deleted, nothing else records these runs, and they would start again.
    fn replaces_unrecorded_job(&self) -> bool {
        let mut active = self.summary.active.iter();
        self.desired.concurrency == ConcurrencyPolicy::Replace && active.any(|job| !self.is_recorded(job))
    }

    /// Reports whether the status records the run of this Job. Until then the Job is the only proof
    /// of the run.
    pub(crate) fn is_recorded(&self, job: &CachedJob) -> bool {
        match job.origin(&self.metadata().name) {
            Origin::Scheduled(slot) => self.recorded.last_schedule.is_some_and(|stored| slot <= stored),
            Origin::RunNow(value) => {
                self.desired.run_now.as_deref() != Some(&*value) || self.recorded.last_run_now == Some(&*value)
            }
            Origin::Manual | Origin::Unknown => true,
        }
    }

    fn starts(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        if self.is_blocked() || self.replaces_unrecorded_job() {
            return effects;
        }
        for run in self.pending_runs() {
            let Ok(job) = self.observed.object.job(&run) else {
                continue;
            };
            if self.is_name_taken(&job.key.name) {
                continue;
            }
            if self.desired.concurrency != ConcurrencyPolicy::Allow {
                // At most one run may be active. The next decision starts the other one.
                if !effects.is_empty() {
                    break;
                }
                effects.extend(self.require_missing_absent());
            }
            if self.desired.concurrency == ConcurrencyPolicy::Replace {
                effects.extend(self.summary.active.iter().flat_map(|job| self.deletion(job)));
            }
            effects.extend(self.start(&run, job));
        }
        effects
    }

    fn start(&self, run: &Run, job: portreeve_reconcile::Object) -> Vec<Effect> {
        let message = format!("Created job {}", job.key.name);
        let mut effects = Vec::new();
        let latency = match run {
            Run::Scheduled(slot) => {
                effects.extend(self.too_many_missed(*slot));
                let metric = K::SKEW_METRIC;
                Some(Effect::ObserveLatency { metric, since: *slot })
            }
            Run::Now(_) => None,
        };
        effects.push(Effect::Create(job));
        effects.extend(latency);
        effects.push(self.event(normal("SuccessfulCreate", message)));
        effects
    }

    fn too_many_missed(&self, slot: Timestamp) -> Option<Effect> {
        let base = self.earliest_time(self.recorded.last_schedule);
        let missed = self.timetable?.count_startable(base, self.now);
        let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        (missed > TOO_MANY_MISSED)
            .then(|| self.event(warning("TooManyMissedTimes", message).report_once(slot.to_string())))
    }

    /// Returns a `RequireAbsent` for each Job that the status lists as active and the cache lacks.
    pub(crate) fn require_missing_absent(&self) -> impl Iterator<Item = Effect> {
        let absent = |job: &&JobReference| Effect::RequireAbsent {
            resource: JOBS,
            key: self.job_key(&job.name),
            uid: job.uid.as_str().into(),
            controller: Arc::clone(&self.metadata().uid),
        };
        self.summary.missing.iter().map(absent)
    }

    fn job_key(&self, name: &str) -> ObjectKey {
        self.metadata().key().with_name(name)
    }

    /// Returns the effects that delete a Job, unless it is already being deleted.
    pub(crate) fn deletion(&self, job: &CachedJob) -> Vec<Effect> {
        if job.metadata().is_terminating() {
            return Vec::new();
        }
        let delete = Effect::Delete {
            target: Target::of(&JOBS, job.metadata()),
            propagation: Propagation::Background,
        };
        let content = normal("SuccessfulDelete", format!("Deleted job {}", job.name()));
        // Deleting a Job that is already gone succeeds. Without `report_once`, a stale cache would
        // repeat this event.
        vec![delete, self.event(content.report_once(&*job.metadata().uid))]
    }

    pub(crate) fn event(&self, content: EventContent) -> Effect {
        Effect::Event(self.target(), content)
    }

    /// Returns when to decide again: at the next scheduled time, or when the deadline of the due
    /// time ends, if that is earlier.
    fn next(&self) -> Next {
        let Some(times) = self.times else {
            return Next::OnChange;
        };
        let times = times.next.into_iter().chain(times.until);
        times.min().map_or(Next::OnChange, Next::At)
    }

    /// Collects the facts that the status reports.
    pub(crate) fn report<'b>(&'b self, fault: Option<&'b Fault>, is_valid: bool, missed: Option<Missed>) -> Report<'b> {
        Report {
            summary: &self.summary,
            times: self.times.as_ref(),
            missed,
            fault,
            is_valid,
            scheduled_since: self.recorded.scheduled_since,
            is_suspended: self.desired.suspend,
        }
    }
}

#[cfg(test)]
mod tests;
