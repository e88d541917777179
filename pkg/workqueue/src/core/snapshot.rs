//! The state of a queue at one time.

use std::{hash::Hash, time::Duration};

use tokio::time::Instant;

use super::{Core, item::State};

/// The state of a queue at one time, for gauges.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueueSnapshot {
    /// The number of keys that can be taken now.
    pub ready: usize,
    /// The number of keys that wait for their time or are in backoff.
    pub delayed: usize,
    /// The number of keys whose backoff has passed and that wait for a token of the
    /// [`RetryBudget`](crate::RetryBudget).
    pub held: usize,
    /// The number of keys that workers hold.
    pub running: usize,
    /// The number of running keys that are ready again as soon as they end. As in client-go,
    /// `workqueue_depth` is the sum of `rerun` and `ready`.
    pub rerun: usize,
    /// How long the key at the head of a lane has been due; the longer time of both lanes. `None`
    /// if no key is ready.
    pub oldest_ready: Option<Duration>,
    /// The duration of the longest current run. `None` if nothing runs.
    pub longest_running: Option<Duration>,
    /// The total duration of all current runs.
    pub unfinished: Duration,
}

impl<K: Clone + Eq + Hash> Core<K> {
    /// Returns the state of the queue. Linear in the number of running keys, which is at most the
    /// number of workers.
    pub(crate) fn observe(&mut self, now: Instant) -> QueueSnapshot {
        self.advance(now);
        let (ready, held) = (self.waiting.ready_queue.len(), self.waiting.held.len());
        let running = self.running.len();
        let mut snapshot = QueueSnapshot {
            ready,
            delayed: self.items.len() - ready - held - running,
            held,
            running,
            ..QueueSnapshot::default()
        };
        let keys = self.waiting.ready_queue.heads().chain(self.running.values());
        for item in keys.filter_map(|key| self.items.get(key)) {
            let age = now.saturating_duration_since(item.at);
            if let State::Running { again, .. } = item.state {
                snapshot.longest_running = snapshot.longest_running.max(Some(age));
                snapshot.unfinished += age;
                snapshot.rerun += usize::from(again.is_some_and(|due| due.when <= now));
            } else {
                snapshot.oldest_ready = snapshot.oldest_ready.max(Some(age));
            }
        }
        snapshot
    }

    /// Returns the number of tokens in the retry budget; `None` if it has no limit.
    pub(crate) fn retry_tokens(&mut self, now: Instant) -> Option<i64> {
        self.waiting.bucket.available(now)
    }
}
