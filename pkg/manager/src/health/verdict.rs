//! What health checks conclude from what queues and watches report.
//!
//! A worker is stuck when its item makes no step for longer than a limit; a queue is, when what is due in it waits for longer than a limit
//! while nothing moves. A queue that moves is busy, however long it is and however long its oldest item waits: others go first, and there
//! is much to do.
//!
//! Architecture Invariant: pure; ages are arguments, and what was looked at is not looked at again.

use std::time::Duration;

use portreeve_client::Answer;
use portreeve_informer::Report;
use portreeve_reconcile::Vitals;
use portreeve_serving::State;

/// How many undecodable objects a line names.
const NAMED: usize = 3;

/// How long what may be stuck is waited for. Zero: as long as it takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// An item in work, without a step.
    pub(crate) item: Duration,
    /// What is due in a queue, while nothing moves in it.
    pub(crate) queue: Duration,
}

/// How the threads fare that everything but health runs on, and that have run no task for so long.
pub(crate) fn runtime(age: Option<Duration>, limit: Duration) -> State {
    match age {
        Some(age) if !limit.is_zero() && age > limit => State::Failed(format!(
            "no task has run for {} s, longer than {limit:?} (--controller-stuck-timeout): something blocks the thread, and only a \
             restart frees them",
            age.as_secs()
        )),
        _ => State::Ok,
    }
}

/// How the workers of one controller fare. While they end they may take as long as the shutdown gives them.
pub(crate) fn workers(vitals: &[Vitals], limits: Limits, is_stopping: bool) -> State {
    let stuck: Vec<_> = vitals.iter().filter_map(|vitals| trouble(vitals, limits)).collect();
    if stuck.is_empty() {
        return State::Ok;
    }
    let stuck = stuck.join("; ");
    if is_stopping {
        State::Note(format!("stopping: {stuck}"))
    } else {
        State::Failed(format!(
            "{stuck}. Only a restart frees it; the last log lines of the controller tell what it was about"
        ))
    }
}

/// What is stuck about one queue. An item in work goes first: that nothing else moves follows from it.
fn trouble(vitals: &Vitals, limits: Limits) -> Option<String> {
    let Vitals {
        queue,
        stillest,
        ready,
        oldest_ready,
        unmoved,
    } = vitals;
    let exceeds = |age: Duration, limit: Duration| !limit.is_zero() && age > limit;
    let held = stillest.as_ref().map(|(item, still)| {
        format!(
            "item {item} of the queue {queue} has been in work for {} s",
            still.as_secs()
        )
    });
    if let (Some(held), Some((_, still))) = (&held, stillest)
        && exceeds(*still, limits.item)
    {
        let limit = limits.item;
        return Some(format!(
            "{held} without a step, longer than {limit:?} (--controller-stuck-timeout): a worker is stuck"
        ));
    }
    let waited = oldest_ready.filter(|waited| exceeds(*waited, limits.queue))?;
    // What was never touched has waited since it was due.
    let unmoved = unmoved.unwrap_or(waited);
    exceeds(unmoved, limits.queue).then(|| {
        let held = held.map_or_else(|| "no worker takes any".to_owned(), |held| format!("{held} meanwhile"));
        format!(
            "the queue {queue} has {ready} due, the oldest for {} s, and nothing has moved for {} s, longer than {:?} \
             (--queue-stuck-timeout): {held}",
            waited.as_secs(),
            unmoved.as_secs(),
            limits.queue
        )
    })
}

/// How a watch fares that was heard of so long ago.
pub(crate) fn watch(report: &Report, stale_after: Duration, age: Option<Duration>) -> State {
    if let Some(trouble) = &report.trouble {
        match trouble.answer {
            Answer::NotFound => {
                return State::Note(format!(
                    "the resource is not served, waiting for its definition: {}",
                    trouble.message
                ));
            }
            Answer::Forbidden => {
                return State::Failed(format!(
                    "forbidden: {}; `portreeve rbac` prints the rules that are needed",
                    trouble.message
                ));
            }
            _ if !report.synced => return State::Failed(format!("not synced: {}", trouble.message)),
            _ => {}
        }
    }
    if !report.synced {
        return State::Failed("not synced: the first list is still under way".to_owned());
    }
    let trouble = report.trouble.as_ref().map(|trouble| trouble.message.as_str());
    if let Some(age) = age.filter(|age| *age > stale_after) {
        let reason = trouble.unwrap_or("the connection is silent");
        return State::Failed(format!(
            "stale, last heard of {} s ago, longer than {stale_after:?}: {reason}",
            age.as_secs()
        ));
    }
    let mut notes: Vec<String> = trouble
        .map(|trouble| format!("reconnecting: {trouble}"))
        .into_iter()
        .collect();
    if !report.undecodable.is_empty() {
        let count = report.undecodable.len();
        let shown = report.undecodable.iter().take(NAMED);
        let shown: Vec<_> = shown.map(|(key, error)| format!("{key}: {error}")).collect();
        notes.push(format!(
            "{count} objects cannot be decoded and are skipped: {}",
            shown.join("; ")
        ));
    }
    if notes.is_empty() {
        State::Ok
    } else {
        State::Note(notes.join("; "))
    }
}

#[cfg(test)]
mod tests;
