//! Builds the plan that starts runs: it creates their Jobs and deletes the Jobs that they replace.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_reconcile::{Effect, Object};

use crate::{
    api::ConcurrencyPolicy,
    assess::{Assessment, PendingRun},
    effects::{deletion, event, normal, reads, require_absent, warning},
    input::Fault,
    job::{CachedJob, Run},
    schedule_resource::ScheduleResource,
    status::deletions_of_replaced,
};

/// The effects that start runs, and why a pending run cannot start.
pub(crate) struct StartPlan {
    /// The effects that start runs; empty if none can start now.
    pub(crate) effects: Vec<Effect>,
    /// Why a pending run cannot start: its Job's name is taken, or the template is invalid.
    pub(crate) fault: Option<Fault>,
}

impl StartPlan {
    /// Returns the runs that can start now. A run waits until the status records those that it
    /// replaces. If the status cannot be written, the new Job records them instead.
    pub(crate) fn new<K: ScheduleResource>(object: &K, assessment: &Assessment<'_>, is_status_writable: bool) -> Self {
        let (mut jobs, mut fault) = (Vec::new(), None);
        for pending in &assessment.pending_runs {
            match build_job(object, pending) {
                Ok(job) => jobs.push((pending, job)),
                Err(reason) => fault = fault.or(Some(reason)),
            }
        }
        let input = assessment.input;
        let replaced = &assessment.replaced_runs;
        let waits_for_status = is_status_writable && !replaced.is_empty();
        // The status of a new schedule must record the format of its Jobs' names first.
        if assessment.is_blocked || waits_for_status || input.is_new {
            jobs.clear();
        }
        let (mut effects, mut deletions) = (Vec::new(), Vec::new());
        if input.desired.concurrency != ConcurrencyPolicy::Allow && !jobs.is_empty() {
            // At most one run may be active. The next decision starts the other one.
            jobs.truncate(1);
            effects.extend(require_absent(input, &assessment.summary.missing));
            if input.desired.concurrency == ConcurrencyPolicy::Replace {
                // The Jobs that were replaced before are deleted first, so that at most two are
                // active.
                effects.extend(deletions_of_replaced(assessment));
                let is_left = |job: &&&Arc<CachedJob>| {
                    let mut earlier = assessment.replaced_jobs.iter();
                    !earlier.any(|earlier| Arc::ptr_eq(earlier, job))
                };
                let active = assessment.summary.active.iter().filter(is_left);
                deletions.extend(active.flat_map(|job| deletion(input, job)));
            }
        }
        if !replaced.is_empty() {
            for (_, job) in &mut jobs {
                replaced.annotate(job);
            }
        }
        let starts = jobs
            .into_iter()
            .flat_map(|(pending, job)| start::<K>(assessment, pending, job));
        if replaced.is_empty() {
            effects.extend(deletions.into_iter().chain(starts));
        } else {
            // There must be a record of the replaced runs at any time.
            effects.extend(starts.chain(deletions));
        }
        if !effects.is_empty() {
            effects.splice(0..0, checks(assessment));
        }
        Self { effects, fault }
    }
}

/// Returns the reads that must precede the start of a run.
pub(crate) fn checks(assessment: &Assessment<'_>) -> Vec<Effect> {
    let input = assessment.input;
    let unseen = &input.runs.unseen;
    match input.desired.concurrency {
        // An active Job does not matter, but a Job of this name may exist.
        ConcurrencyPolicy::Allow => reads(input, unseen.unknown()),
        ConcurrencyPolicy::Forbid | ConcurrencyPolicy::Replace => reads(input, unseen.outdated(input.now)),
    }
}

fn build_job<K: ScheduleResource>(object: &K, pending: &PendingRun) -> Result<Object, Fault> {
    let job = object.job(&pending.run, &pending.job_name)?;
    if pending.is_name_taken {
        return Err(Fault {
            reason: "FailedCreate",
            message: format!(
                "Error creating job: {} already exists for another owner or run; delete or rename it",
                pending.job_name
            ),
        });
    }
    Ok(job)
}

/// Returns the effects that start a run.
fn start<K: ScheduleResource>(assessment: &Assessment<'_>, pending: &PendingRun, job: Object) -> Vec<Effect> {
    let input = assessment.input;
    let created = normal("SuccessfulCreate", format!("Created job {}", job.key.name));
    let mut effects = Vec::new();
    let latency = match &pending.run {
        Run::Scheduled(_, slot) => {
            if pending.follows_too_many_missed {
                let message =
                    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
                let content = warning("TooManyMissedTimes", message).report_once(slot.to_string());
                effects.push(event(input, content));
            }
            Some(Effect::ObserveLatency {
                metric: K::SKEW_METRIC,
                since: *slot,
            })
        }
        Run::Now(_) => None,
    };
    effects.push(Effect::Create(job));
    effects.extend(latency);
    effects.push(event(input, created));
    effects
}
