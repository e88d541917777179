//! What health checks conclude from what queues and watches report.
//!
//! A worker is stuck when its item makes no step for longer than a limit; a queue is, when what is due in it waits for longer than a limit
//! while nothing moves. A queue that moves is busy, however long it is and however long its oldest item waits: others go first, and there
//! is much to do.
//!
//! Architecture Invariant: pure; ages are arguments, and what was looked at is not looked at again.

use std::time::Duration;

use portreeve_client::ApiErrorKind;
use portreeve_informer::Report;
use portreeve_reconcile::QueueHealth;
use portreeve_serving::HealthStatus;

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
pub(crate) fn runtime(age: Option<Duration>, limit: Duration) -> HealthStatus {
    match age {
        Some(age) if !limit.is_zero() && age > limit => HealthStatus::Failed(format!(
            "no task has run for {} s, longer than {limit:?} (--controller-stuck-timeout): something blocks the thread, and only a \
             restart frees them",
            age.as_secs()
        )),
        _ => HealthStatus::Ok,
    }
}

/// How the workers of one controller fare. While they end they may take as long as the shutdown gives them.
pub(crate) fn workers(health: &[QueueHealth], limits: Limits, is_stopping: bool) -> HealthStatus {
    let stuck: Vec<_> = health.iter().filter_map(|health| trouble(health, limits)).collect();
    if stuck.is_empty() {
        return HealthStatus::Ok;
    }
    let stuck = stuck.join("; ");
    if is_stopping {
        HealthStatus::Note(format!("stopping: {stuck}"))
    } else {
        HealthStatus::Failed(format!(
            "{stuck}. Only a restart frees it; the last log lines of the controller tell what it was about"
        ))
    }
}

/// What is stuck about one queue. An item in work goes first: that nothing else moves follows from it.
fn trouble(health: &QueueHealth, limits: Limits) -> Option<String> {
    let QueueHealth {
        queue,
        longest_stalled,
        ready,
        oldest_ready,
        since_progress,
    } = health;
    let exceeds = |age: Duration, limit: Duration| !limit.is_zero() && age > limit;
    let held = longest_stalled.as_ref().map(|(item, still)| {
        format!(
            "item {item} of the queue {queue} has been in work for {} s",
            still.as_secs()
        )
    });
    if let (Some(held), Some((_, still))) = (&held, longest_stalled)
        && exceeds(*still, limits.item)
    {
        let limit = limits.item;
        return Some(format!(
            "{held} without a step, longer than {limit:?} (--controller-stuck-timeout): a worker is stuck"
        ));
    }
    let waited = oldest_ready.filter(|waited| exceeds(*waited, limits.queue))?;
    // What was never touched has waited since it was due.
    let since_progress = since_progress.unwrap_or(waited);
    exceeds(since_progress, limits.queue).then(|| {
        let held = held.map_or_else(|| "no worker takes any".to_owned(), |held| format!("{held} meanwhile"));
        format!(
            "the queue {queue} has {ready} due, the oldest for {} s, and nothing has moved for {} s, longer than {:?} \
             (--queue-stuck-timeout): {held}",
            waited.as_secs(),
            since_progress.as_secs(),
            limits.queue
        )
    })
}

/// How a watch fares that was heard of so long ago.
pub(crate) fn watch(report: &Report, stale_after: Duration, age: Option<Duration>) -> HealthStatus {
    if let Some(failure) = &report.failure {
        match failure.kind {
            ApiErrorKind::NotFound => {
                return HealthStatus::Note(format!(
                    "the resource is not served, waiting for its definition: {}",
                    failure.message
                ));
            }
            ApiErrorKind::Forbidden => {
                return HealthStatus::Failed(format!(
                    "forbidden: {}; `portreeve rbac` prints the rules that are needed",
                    failure.message
                ));
            }
            _ if !report.synced => return HealthStatus::Failed(format!("not synced: {}", failure.message)),
            _ => {}
        }
    }
    if !report.synced {
        return HealthStatus::Failed("not synced: the first list is still under way".to_owned());
    }
    let failure = report.failure.as_ref().map(|failure| failure.message.as_str());
    if let Some(age) = age.filter(|age| *age > stale_after) {
        let reason = failure.unwrap_or("the connection is silent");
        return HealthStatus::Failed(format!(
            "stale, last heard of {} s ago, longer than {stale_after:?}: {reason}",
            age.as_secs()
        ));
    }
    let mut notes: Vec<String> = failure
        .map(|failure| format!("reconnecting: {failure}"))
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
        HealthStatus::Ok
    } else {
        HealthStatus::Note(notes.join("; "))
    }
}

#[cfg(test)]
mod tests;
