//! The health of work queues, from which the manager derives `/livez`.

use std::{sync::Arc, time::Duration};

use portreeve_workqueue::{Key, Queue};

/// The current health of a queue and its workers, for `/livez`.
#[derive(Clone, Debug)]
pub struct QueueHealth {
    /// The name of the queue in metrics.
    pub queue: &'static str,
    /// The running item that has gone longest without progress, and for how long.
    pub longest_stalled: Option<(String, Duration)>,
    /// The number of items that are ready and not being worked on.
    pub ready: usize,
    /// How long the item at the head of a lane has been ready; the longer time of both lanes.
    pub oldest_ready: Option<Duration>,
    /// How long ago an item was last taken, finished or made progress; `None` before the first
    /// time.
    pub since_progress: Option<Duration>,
}

/// A controller's queue and a function that checks its health.
#[derive(Clone)]
pub struct QueueHealthChecker {
    /// The name of the controller.
    pub controller: &'static str,
    /// Returns the current health.
    pub check: Arc<dyn Fn() -> QueueHealth + Send + Sync>,
}

impl QueueHealthChecker {
    /// Creates the check of a work queue. `name` is the queue's name in metrics, and `format_key`
    /// formats a key. The check runs on the health thread and must not block.
    ///
    /// The queue must hold keys only while there are workers, because a standby's keys would wait
    /// for days.
    pub fn of<K: Key>(
        controller: &'static str,
        name: &'static str,
        queue: Queue<K>,
        format_key: impl Fn(&K) -> String + Send + Sync + 'static,
    ) -> Self {
        let check = move || {
            let progress = queue.progress();
            QueueHealth {
                queue: name,
                longest_stalled: progress
                    .longest_stalled
                    .map(|(key, stalled)| (format_key(&key), stalled)),
                ready: progress.ready,
                oldest_ready: progress.oldest_ready,
                since_progress: progress.since_progress,
            }
        };
        Self {
            controller,
            check: Arc::new(check),
        }
    }
}
