//! What follows once nothing is to be started: the status, the events that go with it, and the end of old Jobs. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::ConcurrencyPolicy;
use portreeve_informer::Projection;
use portreeve_reconcile::Effect;

use crate::{
    decide::{Sight, normal, warning},
    job::SeenJob,
    kind::{Fault, Kind, Missed},
    slots::before,
};

/// The effects. `refusal`: what the apiserver refused to do just now.
pub(crate) fn effects<K: Kind>(sight: &Sight<'_, K>, refusal: Option<&Fault>) -> Vec<Effect> {
    let in_spec = spec_fault(sight);
    let collision = collision(sight);
    let fault = in_spec.as_ref().or(refusal).or(collision.as_ref());
    let missed = missed(sight);
    let report = sight.report(fault, in_spec.is_none(), missed);
    let mut effects = Vec::new();
    if let Some(status) = sight.seen.object.status(&report, sight.now) {
        effects.extend(sight.confirmed_missing());
        let target = sight.target();
        effects.push(Effect::PatchStatus { target, status });
        effects.extend(news(sight));
        effects.extend(missed.into_iter().flat_map(|missed| misses(sight, missed)));
    }
    effects.extend(complaints(sight, fault));
    effects.extend(outlived(sight).into_iter().flat_map(|job| sight.deletion(job)));
    effects
}

/// What is wrong with the spec.
fn spec_fault<K: Kind>(sight: &Sight<'_, K>) -> Option<Fault> {
    if let Err(fault) = &sight.orders.timetable {
        return Some(fault.clone());
    }
    let slots = sight.slots.as_ref()?;
    (slots.next.is_none() && slots.due.is_none()).then(|| Fault {
        reason: "InvalidSchedule",
        message: format!(
            "invalid schedule: {} : it has no run within five years, as no day fits all of its fields",
            sight.timetable.map_or("", |timetable| &timetable.text)
        ),
    })
}

/// A run cannot start, because its Job's name is taken or its template is none.
fn collision<K: Kind>(sight: &Sight<'_, K>) -> Option<Fault> {
    sight.wanted().iter().find_map(|run| match sight.seen.object.job(run) {
        Err(fault) => Some(fault),
        Ok(job) => sight.is_taken(&job.key.name).then(|| Fault {
            reason: "FailedCreate",
            message: format!(
                "Error creating job: {} exists and belongs to somebody else, or to another run; delete or rename it",
                job.key.name
            ),
        }),
    })
}

/// What the status did not know: Jobs that ended, and Jobs that went.
fn news<K: Kind>(sight: &Sight<'_, K>) -> Vec<Effect> {
    let ended = sight.facts.completed.iter().map(|(job, end)| {
        let message = format!("Saw completed job: {}, condition: {}", job.name(), end.name());
        sight.tell(normal("SawCompletedJob", message))
    });
    let mut news: Vec<_> = ended.collect();
    let is_new = |job: &&Arc<SeenJob>| !sight.memory.active.iter().any(|old| *old.uid == *job.metadata().uid);
    let is_replaced = sight.orders.concurrency == ConcurrencyPolicy::Replace && sight.facts.active.iter().any(is_new);
    if !is_replaced {
        news.extend(sight.facts.missing.iter().map(|job| {
            let message = format!("Active job went missing: {}", job.name);
            sight.tell(normal("MissingJob", message))
        }));
    }
    news
}

/// What no status remembers, said once for each subject.
fn complaints<K: Kind>(sight: &Sight<'_, K>, fault: Option<&Fault>) -> Vec<Effect> {
    let generation = sight.metadata().generation;
    let new_fault = fault.filter(|fault| sight.memory.said != Some((fault.reason, &fault.message)));
    let faults = new_fault.into_iter().chain(&sight.orders.warning);
    let faults = faults.map(|fault| {
        let subject = format!("{generation} {}", fault.message);
        sight.tell(warning(fault.reason, &fault.message).once(subject))
    });
    let unexpected = sight.facts.unexpected.iter().map(|job| {
        let message = format!("Saw a job that the controller did not create or forgot: {}", job.name());
        sight.tell(warning("UnexpectedJob", message).once(&*job.metadata().uid))
    });
    let mut effects: Vec<_> = faults.chain(unexpected).collect();
    if sight.is_blocked() {
        effects.extend(
            sight
                .wanted()
                .iter()
                .map(|run| blocked(sight, &run.job_name(&sight.metadata().name))),
        );
    }
    if K::MISSED.is_none() {
        effects.extend(missed(sight).map(|missed| {
            let message = missed_message(missed);
            sight.tell(warning("MissSchedule", message).once(missed.last.to_string()))
        }));
    }
    effects
}

fn blocked<K: Kind>(sight: &Sight<'_, K>, job: &str) -> Effect {
    let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
    sight.tell(normal("JobAlreadyActive", message).once(job))
}

/// The times since the stored status for which nothing ran and nothing will.
fn missed<K: Kind>(sight: &Sight<'_, K>) -> Option<Missed> {
    let (timetable, slots) = (sight.timetable?, sight.slots?);
    if K::MISSED.is_none() {
        // No status remembers which were reported: only what came too late is, and each of these once.
        let last = slots.lapsed.filter(|_| slots.due.is_none())?;
        return Some(Missed { count: 1, last });
    }
    let stored = sight
        .base(sight.memory.last_schedule)
        .max(sight.memory.last_missed.unwrap_or(Timestamp::MIN));
    let served = sight.facts.last_schedule.filter(|served| *served > stored);
    // The times before the last one that was served, except for those that were served too, and the times after it.
    let until = served.map(before);
    let passed = until.map_or(0, |until| {
        let all = timetable.count(stored, until);
        all.saturating_sub(sight.served_between(stored, until))
    });
    let since = served.unwrap_or(stored);
    let lapsed = slots.lapsed.filter(|lapsed| *lapsed > since);
    let count = passed + lapsed.map_or(0, |lapsed| timetable.count(since, lapsed));
    let last = lapsed.or_else(|| sight.last_unserved(stored, until?));
    (count > 0).then_some(Missed { count, last: last? })
}

/// That times were missed, as an event and in the counter.
fn misses<K: Kind>(sight: &Sight<'_, K>, missed: Missed) -> Vec<Effect> {
    let Some(metric) = K::MISSED else {
        return Vec::new();
    };
    let count = Effect::Count {
        metric,
        by: missed.count.into(),
    };
    vec![count, sight.tell(warning("MissSchedule", missed_message(missed)))]
}

fn missed_message(missed: Missed) -> String {
    let last = missed.last.strftime("%a, %d %b %Y %H:%M:%S +0000");
    match missed.count {
        1 => format!("Missed scheduled time to start a job: {last}"),
        count => format!("Missed {count} scheduled times to start a job, the last one: {last}"),
    }
}

/// The Jobs that are more than are kept, the oldest first.
///
/// Those of which the status does not tell yet stay.
fn outlived<'a, K: Kind>(sight: &'a Sight<'_, K>) -> Vec<&'a Arc<SeenJob>> {
    if sight.metadata().is_terminating() {
        return Vec::new();
    }
    let excess = |jobs: &'a [&Arc<SeenJob>], keep: Option<usize>| {
        let excess = keep.map_or(0, |keep| jobs.len().saturating_sub(keep));
        jobs.iter().take(excess).copied().collect::<Vec<_>>()
    };
    let successful = excess(&sight.facts.successful, sight.orders.keep_successful);
    let failed = excess(&sight.facts.failed, sight.orders.keep_failed);
    let old = successful.into_iter().chain(failed);
    old.filter(|job| sight.is_stored(job)).collect()
}
