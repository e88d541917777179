//! Builds the plan when no run starts: the status, its events, and the deletion of old Jobs. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::ConcurrencyPolicy;
use portreeve_informer::Projection;
use portreeve_reconcile::Effect;

use crate::{
    decide::{Assessment, normal, warning},
    job::CachedJob,
    schedule_resource::{Fault, Missed, ScheduleResource},
    scheduled_times::before,
};

/// Returns the effects when no run starts. `rejection` describes the create that the apiserver has
/// just rejected.
pub(crate) fn effects<K: ScheduleResource>(assessment: &Assessment<'_, K>, rejection: Option<&Fault>) -> Vec<Effect> {
    let invalid_spec = spec_fault(assessment);
    let start_fault = start_fault(assessment);
    let fault = invalid_spec.as_ref().or(rejection).or(start_fault.as_ref());
    let missed = missed(assessment);
    let report = assessment.report(fault, invalid_spec.is_none(), missed);
    let mut effects = Vec::new();
    if let Some(status) = assessment.observed.object.status(&report, assessment.now) {
        effects.extend(assessment.require_missing_absent());
        let target = assessment.target();
        effects.push(Effect::PatchStatus { target, status });
        effects.extend(transition_events(assessment));
        effects.extend(
            missed
                .into_iter()
                .flat_map(|missed| missed_run_effects(assessment, missed)),
        );
    }
    effects.extend(one_time_events(assessment, fault));
    effects.extend(
        jobs_over_history_limit(assessment)
            .into_iter()
            .flat_map(|job| assessment.deletion(job)),
    );
    effects
}

/// Returns what is wrong with the spec.
fn spec_fault<K: ScheduleResource>(assessment: &Assessment<'_, K>) -> Option<Fault> {
    if let Err(fault) = &assessment.desired.timetable {
        return Some(fault.clone());
    }
    let times = assessment.times.as_ref()?;
    (times.next.is_none() && times.due.is_none()).then(|| Fault {
        reason: "InvalidSchedule",
        message: format!(
            "invalid schedule: {} : no run within five years, because no day matches all of its fields",
            assessment.timetable.map_or("", |timetable| &timetable.text)
        ),
    })
}

/// Returns why a pending run cannot start: its Job's name is taken, or the template is invalid.
fn start_fault<K: ScheduleResource>(assessment: &Assessment<'_, K>) -> Option<Fault> {
    assessment
        .pending_runs()
        .iter()
        .find_map(|run| match assessment.observed.object.job(run) {
            Err(fault) => Some(fault),
            Ok(job) => assessment.is_name_taken(&job.key.name).then(|| Fault {
                reason: "FailedCreate",
                message: format!(
                    "Error creating job: {} already exists for another owner or run; delete or rename it",
                    job.key.name
                ),
            }),
        })
}

/// Returns events for Jobs that finished or went missing since the status was written.
fn transition_events<K: ScheduleResource>(assessment: &Assessment<'_, K>) -> Vec<Effect> {
    let ended = assessment.summary.completed.iter().map(|(job, end)| {
        let message = format!("Saw completed job: {}, condition: {}", job.name(), end.condition_type());
        assessment.event(normal("SawCompletedJob", message))
    });
    let mut events: Vec<_> = ended.collect();
    let is_new = |job: &&Arc<CachedJob>| {
        !assessment
            .recorded
            .active
            .iter()
            .any(|old| *old.uid == *job.metadata().uid)
    };
    let is_replaced =
        assessment.desired.concurrency == ConcurrencyPolicy::Replace && assessment.summary.active.iter().any(is_new);
    if !is_replaced {
        events.extend(assessment.summary.missing.iter().map(|job| {
            let message = format!("Active job went missing: {}", job.name);
            assessment.event(normal("MissingJob", message))
        }));
    }
    events
}

/// Returns events about facts that no status records. The process sends each of them once per
/// subject.
fn one_time_events<K: ScheduleResource>(assessment: &Assessment<'_, K>, fault: Option<&Fault>) -> Vec<Effect> {
    let generation = assessment.metadata().generation;
    let new_fault = fault.filter(|fault| assessment.recorded.last_reported != Some((fault.reason, &fault.message)));
    let faults = new_fault.into_iter().chain(&assessment.desired.warning);
    let faults = faults.map(|fault| {
        let subject = format!("{generation} {}", fault.message);
        assessment.event(warning(fault.reason, &fault.message).report_once(subject))
    });
    let unexpected = assessment.summary.unexpected.iter().map(|job| {
        let message = format!("Saw a job that the controller did not create or forgot: {}", job.name());
        assessment.event(warning("UnexpectedJob", message).report_once(&*job.metadata().uid))
    });
    let mut effects: Vec<_> = faults.chain(unexpected).collect();
    if assessment.is_blocked() {
        effects.extend(
            assessment
                .pending_runs()
                .iter()
                .map(|run| blocked_event(assessment, &run.job_name(&assessment.metadata().name))),
        );
    }
    if K::MISSED_METRIC.is_none() {
        effects.extend(missed(assessment).map(|missed| {
            let message = missed_message(missed);
            assessment.event(warning("MissSchedule", message).report_once(missed.last.to_string()))
        }));
    }
    effects
}

fn blocked_event<K: ScheduleResource>(assessment: &Assessment<'_, K>, job: &str) -> Effect {
    let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
    assessment.event(normal("JobAlreadyActive", message).report_once(job))
}

/// Returns the times since the recorded status that had no run and will never have one.
fn missed<K: ScheduleResource>(assessment: &Assessment<'_, K>) -> Option<Missed> {
    let (timetable, times) = (assessment.timetable?, assessment.times?);
    if K::MISSED_METRIC.is_none() {
        // No status records the reported times, so only the latest expired one is reported, once.
        let last = times.expired.filter(|_| times.due.is_none())?;
        return Some(Missed { count: 1, last });
    }
    let recorded_until = assessment
        .earliest_time(assessment.recorded.last_schedule)
        .max(assessment.recorded.last_missed.unwrap_or(Timestamp::MIN));
    let last_run = assessment.summary.last_schedule.filter(|last| *last > recorded_until);
    // Count the times without a Job before the last run, and the expired times after it.
    let until = last_run.map(before);
    let skipped = until.map_or(0, |until| {
        let all = timetable.count(recorded_until, until);
        all.saturating_sub(assessment.count_jobs_between(recorded_until, until))
    });
    let since = last_run.unwrap_or(recorded_until);
    let expired = times.expired.filter(|expired| *expired > since);
    let count = skipped + expired.map_or(0, |expired| timetable.count(since, expired));
    let last = expired.or_else(|| assessment.last_without_job(recorded_until, until?));
    (count > 0).then_some(Missed { count, last: last? })
}

/// Returns the event and the counter increment for missed times.
fn missed_run_effects<K: ScheduleResource>(assessment: &Assessment<'_, K>, missed: Missed) -> Vec<Effect> {
    let Some(metric) = K::MISSED_METRIC else {
        return Vec::new();
    };
    let count = Effect::Count {
        metric,
        by: missed.count.into(),
    };
    vec![count, assessment.event(warning("MissSchedule", missed_message(missed)))]
}

fn missed_message(missed: Missed) -> String {
    let last = missed.last.strftime("%a, %d %b %Y %H:%M:%S +0000");
    match missed.count {
        1 => format!("Missed scheduled time to start a job: {last}"),
        count => format!("Missed {count} scheduled times to start a job, the last one: {last}"),
    }
}

/// Returns the finished Jobs above the history limits, the oldest first.
///
/// Jobs whose runs the status does not record yet are kept.
fn jobs_over_history_limit<'a, K: ScheduleResource>(assessment: &'a Assessment<'_, K>) -> Vec<&'a Arc<CachedJob>> {
    if assessment.metadata().is_terminating() {
        return Vec::new();
    }
    let excess = |jobs: &'a [&Arc<CachedJob>], keep: Option<usize>| {
        let excess = keep.map_or(0, |keep| jobs.len().saturating_sub(keep));
        jobs.iter().take(excess).copied().collect::<Vec<_>>()
    };
    let successful = excess(&assessment.summary.successful, assessment.desired.keep_successful);
    let failed = excess(&assessment.summary.failed, assessment.desired.keep_failed);
    let old = successful.into_iter().chain(failed);
    old.filter(|job| assessment.is_recorded(job)).collect()
}
