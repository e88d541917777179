//! Decides what to do for a schedule: start the runs that are due, or else update its status. All
//! kinds share this code.
//!
//! A plan that starts Jobs does nothing else. With thousands of schedules due at once, all their
//! Jobs are created before any status is written. The names and annotations of the Jobs contain
//! their scheduled times, so the next decision derives the status from them.
//!
//! Architecture Invariant: pure. The time is an argument.

use jiff::Timestamp;
use portreeve_reconcile::{Effect, Plan};

use crate::{
    assess::Assessment,
    effects::{event, reads, warning},
    input::Fault,
    schedule_resource::{Observed, ScheduleResource},
    starts::{self, StartPlan},
    status,
};

pub(crate) fn decide<K: ScheduleResource>(observed: &Observed<K>, now: Timestamp) -> Plan {
    let input = observed.input(now);
    let assessment = Assessment::new(&input);
    let starts = StartPlan::new(&*observed.object, &assessment, !observed.runs.is_status_refused);
    let mut effects = starts.effects;
    if effects.is_empty() {
        // A Job that blocks a run may have finished although the watch does not show it.
        if !assessment.pending_runs.is_empty() {
            effects = starts::checks(&assessment);
        }
        effects.extend(status::effects(&*observed.object, &assessment, starts.fault.as_ref()));
        let reads = reads(&input, input.runs.unseen.outdated(now)).into_iter();
        let missing: Vec<_> = reads.filter(|read| !effects.contains(read)).collect();
        effects.extend(missing);
    }
    let next = assessment.next;
    Plan { effects, next }
}

/// Returns the plan after the apiserver rejected `effect`. The plan reports the rejection, and does
/// what does not depend on the effect: after a rejected create, it updates the status and deletes
/// old Jobs; after a rejected deletion that precedes a run, it updates the status; and after a
/// rejected status, it starts the runs that wait for that status, and deletes the Jobs that others
/// have replaced.
pub(crate) fn refused<K: ScheduleResource>(observed: &Observed<K>, effect: &Effect, why: &str, now: Timestamp) -> Plan {
    let input = observed.input(now);
    let report = |reason| Plan::of(vec![event(&input, warning(reason, why).report_once(why))]);
    match effect {
        Effect::Create(_) => {
            let (reason, message) = ("FailedCreate", why.to_owned());
            let fault = Fault { reason, message };
            Plan::of(status::effects(
                &*observed.object,
                &Assessment::new(&input),
                Some(&fault),
            ))
        }
        // Send an event but set no condition: the next decision finds no fault and would reset it.
        Effect::Delete { .. } => {
            let (mut plan, assessment) = (report("FailedDelete"), Assessment::new(&input));
            let starts = StartPlan::new(&*observed.object, &assessment, false);
            if !starts.effects.is_empty() || observed.runs.is_status_refused {
                // The deletion may precede the start of a run, and so the status.
                let update = status::update(&*observed.object, &assessment, starts.fault.as_ref());
                plan.effects.extend(update);
            }
            plan
        }
        effect if effect.status_target().is_some() => {
            let mut plan = report("FailedStatusUpdate");
            let assessment = Assessment::new(&input);
            let starts = StartPlan::new(&*observed.object, &assessment, false);
            if starts.effects.is_empty() {
                plan.effects.extend(status::deletions_of_replaced(&assessment));
            }
            plan.effects.extend(starts.effects);
            plan
        }
        Effect::RequireAbsent { .. } | Effect::Read { .. } => report("FailedGet"),
        _ => Plan::nothing(),
    }
}

#[cfg(test)]
mod tests;
