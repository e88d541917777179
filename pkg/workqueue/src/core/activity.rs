//! What a queue has to do, which shows whether its controller is idle.

use std::{hash::Hash, time::Duration};

use tokio::time::Instant;

use super::{Core, item::State};

/// What a queue has to do, and what waits for its time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct QueueActivity<K> {
    /// The number of keys that were taken so far. If it has not changed between two calls, no key
    /// was taken in between.
    pub taken: u64,
    /// The keys that are ready, running, or to be retried after a failure.
    pub unfinished: Vec<K>,
    /// The keys that have not failed and wait for a requested time, and how long they still wait.
    pub scheduled: Vec<(K, Duration)>,
}

impl<K: Clone + Eq + Hash> Core<K> {
    /// Returns what the queue has to do. Linear in the number of keys.
    pub(crate) fn activity(&mut self, now: Instant) -> QueueActivity<K> {
        self.advance(now);
        let mut activity = QueueActivity {
            taken: self.taken,
            unfinished: Vec::new(),
            scheduled: Vec::new(),
        };
        for (key, item) in &self.items {
            // A failed key may also wait for a requested time before the end of its backoff.
            if item.failures == 0 && matches!(item.state, State::Delayed) {
                let wait = item.at.saturating_duration_since(now);
                activity.scheduled.push((key.clone(), wait));
            } else {
                activity.unfinished.push(key.clone());
            }
        }
        activity
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::{
        backoff::Backoff,
        core::{Lane, Outcome, RetryBudget},
    };

    #[test]
    fn a_failed_key_is_unfinished_even_if_it_waits_for_a_requested_time() {
        let now = Instant::now();
        let soon = now + Duration::from_millis(1);
        let mut core = Core::new(Backoff::DEFAULT, RetryBudget::default(), |_| 0);
        for (key, outcome) in [
            ("forgotten", Outcome::Forget),
            ("scheduled", Outcome::At(soon)),
            ("failed", Outcome::Retry),
            ("failed and requested", Outcome::Retry),
        ] {
            core.add(key, Lane::Urgent, now);
            core.take(now);
            if key == "failed and requested" {
                core.add_at(key, soon, Lane::Urgent, now);
            }
            core.done(&key, outcome, 0.0, now);
        }
        core.add("running", Lane::Urgent, now);
        core.take(now);
        core.add("ready", Lane::Urgent, now);
        core.add_at("later", soon, Lane::Routine, now);
        let mut activity = core.activity(now);
        activity.unfinished.sort_unstable();
        activity.scheduled.sort_unstable();
        assert_eq!(activity.taken, 5);
        assert_eq!(
            activity.unfinished,
            ["failed", "failed and requested", "ready", "running"]
        );
        let wait = Duration::from_millis(1);
        assert_eq!(activity.scheduled, [("later", wait), ("scheduled", wait)]);
    }
}
