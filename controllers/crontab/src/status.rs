//! Builds the plan when no run starts: the status, its events, and the deletion of old Jobs.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_informer::Projection;
use portreeve_reconcile::Effect;

use crate::{
    api::{ConcurrencyPolicy, DEFAULT_SCHEDULE, JobReference, RUN_NOW},
    assess::{Assessment, is_recorded},
    effects::{deletion, event, normal, require_absent, target, warning},
    input::Fault,
    job::CachedJob,
    missed::Missed,
    schedule_resource::ScheduleResource,
};

/// Returns the effects when no run starts. `start_fault` is why a pending run cannot start.
pub(crate) fn effects<K: ScheduleResource>(
    object: &K,
    assessment: &Assessment<'_>,
    start_fault: Option<&Fault>,
) -> Vec<Effect> {
    let mut effects = update(object, assessment, start_fault);
    let replaced = deletions_of_replaced(assessment);
    if assessment.input.runs.is_status_refused {
        // Another attempt to write the status may take long.
        effects.splice(0..0, replaced);
    } else {
        effects.extend(replaced);
    }
    let old_jobs = assessment.jobs_over_history_limit.iter();
    effects.extend(old_jobs.flat_map(|job| deletion(assessment.input, job)));
    effects
}

/// Returns the effects that update the status, and its events.
pub(crate) fn update<K: ScheduleResource>(
    object: &K,
    assessment: &Assessment<'_>,
    start_fault: Option<&Fault>,
) -> Vec<Effect> {
    let input = assessment.input;
    let fault = assessment.spec_fault.as_ref().or(start_fault);
    // These come first, because the status may not be writable.
    let mut effects = one_time_events(object, assessment, fault);
    if let Some(status) = object.status(assessment, fault) {
        effects.extend(require_absent(input, &assessment.summary.missing));
        effects.push(K::write_status(target(input), status));
        effects.extend(transition_events(assessment));
        effects.extend(missed_run_effects(assessment));
    }
    effects
}

/// Returns the effects that delete the Jobs that others have replaced.
pub(crate) fn deletions_of_replaced(assessment: &Assessment<'_>) -> impl Iterator<Item = Effect> {
    let replaced = assessment.replaced_jobs.iter();
    replaced.flat_map(|job| deletion(assessment.input, job))
}

/// Returns events for Jobs that finished or went missing since the status was written, and for a
/// requested run that the first status records as done.
fn transition_events(assessment: &Assessment<'_>) -> Vec<Effect> {
    let Assessment { input, summary, .. } = assessment;
    let ended = summary.completed.iter().map(|(job, end)| {
        let message = format!("Saw completed job: {}, condition: {}", job.name(), end.condition_type());
        event(input, normal("SawCompletedJob", message))
    });
    let mut events: Vec<_> = ended.collect();
    if input.is_new && input.desired.run_now.is_some() {
        let message = format!(
            "Not starting a run for the annotation {RUN_NOW}, because it was set before the controller first \
             observed the object, as in a restored or copied one; set another value to start a run"
        );
        events.push(event(input, warning("SkippedRunNow", message)));
    }
    let is_new = |job: &&Arc<CachedJob>| {
        let mut recorded = input.recorded.active.iter();
        recorded.all(|old| *old.uid != *job.metadata().uid)
    };
    let is_replaced = input.desired.concurrency == ConcurrencyPolicy::Replace
        && (summary.active.iter().any(is_new) || !input.jobs.iter().all(|job| is_recorded(input, job)));
    let is_listed = |missing: &&&JobReference| {
        let mut replaced = input.jobs.iter().filter_map(|job| job.replaced_runs());
        replaced.any(|runs| runs.includes_job(&missing.uid))
    };
    if !is_replaced {
        let missing = summary.missing.iter().filter(|missing| !is_listed(missing));
        events.extend(missing.map(|job| {
            let message = format!("Active job went missing: {}", job.name);
            event(input, normal("MissingJob", message))
        }));
    }
    events
}

/// Returns the counter increment and the event for missed times that the status records.
fn missed_run_effects(assessment: &Assessment<'_>) -> Vec<Effect> {
    let Some(metric) = assessment.input.missed_metric else {
        return Vec::new();
    };
    let effects = assessment.missed().flat_map(|(schedule, missed)| {
        let count = Effect::Count {
            metric,
            by: missed.count.into(),
        };
        let content = warning("MissSchedule", missed_message(schedule, missed));
        [count, event(assessment.input, content)]
    });
    effects.collect()
}

/// Returns events about facts that no status records. The process sends each of them once per
/// subject.
fn one_time_events<K: ScheduleResource>(object: &K, assessment: &Assessment<'_>, fault: Option<&Fault>) -> Vec<Effect> {
    let input = assessment.input;
    let new_fault = fault.filter(|fault| input.recorded.last_reported != Some((fault.reason, &fault.message)));
    let faults = new_fault.into_iter().chain(&input.desired.warning);
    let faults = faults.flat_map(|fault| {
        let subject = format!("{} {}", input.metadata.generation, fault.message);
        let reasons = object.event_reasons(fault).into_iter();
        reasons.map(move |reason| warning(reason, &fault.message).report_once(&*subject))
    });
    let unexpected = assessment.summary.unexpected.iter().map(|job| {
        let message = format!("Saw a job that the controller did not create or forgot: {}", job.name());
        warning("UnexpectedJob", message).report_once(&*job.metadata().uid)
    });
    let blocked = assessment.pending_runs.iter().filter(|_| assessment.is_blocked);
    let blocked = blocked.map(|pending| {
        let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
        normal("JobAlreadyActive", message).report_once(&pending.job_name)
    });
    let missed = assessment.missed().filter(|_| input.missed_metric.is_none());
    let missed = missed.map(|(schedule, missed)| {
        warning("MissSchedule", missed_message(schedule, missed)).report_once(missed.last.to_string())
    });
    let contents = faults.chain(unexpected).chain(blocked).chain(missed);
    contents.map(|content| event(input, content)).collect()
}

fn missed_message(schedule: &str, missed: Missed) -> String {
    let last = missed.last.strftime("%a, %d %b %Y %H:%M:%S +0000");
    let job = match schedule {
        DEFAULT_SCHEDULE => "a job".to_owned(),
        other => format!("a job of schedule {other}"),
    };
    match missed.count {
        1 => format!("Missed scheduled time to start {job}: {last}"),
        count => format!("Missed {count} scheduled times to start {job}, the last one: {last}"),
    }
}
