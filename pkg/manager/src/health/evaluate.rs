//! Derives the results of health checks from the reports of queues and watches.
//!
//! A worker is stuck when its item makes no progress for longer than a limit. A queue is stuck when
//! it has a due item and makes no progress for longer than a limit. A queue that makes progress is
//! busy, however long it is and however long its oldest item waits: items with a higher priority go
//! first.
//!
//! Architecture Invariant: pure. Ages are arguments, and nothing is read twice.

use std::time::Duration;

use portreeve_client::ApiErrorKind;
use portreeve_informer::Report;
use portreeve_reconcile::QueueHealth;
use portreeve_serving::HealthStatus;

/// The number of undecodable objects that a note names.
const NAMED: usize = 3;

/// The time limits after which something counts as stuck. Zero means no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long an item may be processed without progress.
    pub(crate) item: Duration,
    /// How long a queue with due items may make no progress.
    pub(crate) queue: Duration,
}

/// Checks the main runtime, which last ran a task `age` ago.
pub(crate) fn runtime(age: Duration, limit: Duration) -> HealthStatus {
    if limit.is_zero() || age <= limit {
        return HealthStatus::Ok;
    }
    HealthStatus::Failed(format!(
        "no task has run for {} s, longer than {limit:?} (--controller-stuck-timeout): a task blocks the worker thread; \
         restart the process",
        age.as_secs()
    ))
}

/// Checks the workers of one controller. While they stop, the shutdown timeout applies instead.
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
            "{stuck}. Restart the process; the last log lines of the controller show the cause"
        ))
    }
}

/// Returns what is stuck in one queue. A stuck item is reported first, because it explains a queue
/// without progress.
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
            "item {item} of queue {queue} has made no progress for {} s",
            still.as_secs()
        )
    });
    if let (Some(held), Some((_, still))) = (&held, longest_stalled)
        && exceeds(*still, limits.item)
    {
        let limit = limits.item;
        return Some(format!(
            "{held}, longer than {limit:?} (--controller-stuck-timeout): the worker is stuck"
        ));
    }
    let waited = oldest_ready.filter(|waited| exceeds(*waited, limits.queue))?;
    // A queue that never made progress has waited since its oldest item was due.
    let since_progress = since_progress.unwrap_or(waited);
    exceeds(since_progress, limits.queue).then(|| {
        let held = held.unwrap_or_else(|| "no worker takes items".to_owned());
        format!(
            "queue {queue} has {ready} items due, the oldest for {} s, and has made no progress for {} s, longer than {:?} \
             (--queue-stuck-timeout): {held}",
            waited.as_secs(),
            since_progress.as_secs(),
            limits.queue
        )
    })
}

/// Checks a watch that last had contact with the apiserver `age` ago.
pub(crate) fn watch(report: &Report, stale_after: Duration, age: Option<Duration>) -> HealthStatus {
    if let Some(failure) = &report.failure {
        match failure.kind {
            ApiErrorKind::NotFound => {
                return HealthStatus::Note(format!("the resource is not served: {}", failure.message));
            }
            ApiErrorKind::Forbidden => {
                return HealthStatus::Failed(format!(
                    "forbidden: {}; `portreeve rbac` prints the required rules, `portreeve webhooks` those for the \
                     parameters of webhooks",
                    failure.message
                ));
            }
            _ if !report.synced => return HealthStatus::Failed(format!("not synced: {}", failure.message)),
            _ => {}
        }
    }
    if !report.synced {
        return HealthStatus::Failed("not synced: the first list is not complete".to_owned());
    }
    let failure = report.failure.as_ref().map(|failure| failure.message.as_str());
    if let Some(age) = age.filter(|age| *age > stale_after) {
        let reason = failure.unwrap_or("the connection is silent");
        return HealthStatus::Failed(format!(
            "stale: last contact {} s ago, limit {stale_after:?}: {reason}",
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
            "undecodable objects: {count} ({}); their last decodable state is used, if there is one",
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
