//! Operations that reschedule many keys.

use std::{hash::Hash, time::Duration};

use tokio::time::Instant;

use super::{Core, Wake, item::State, item_of};

impl<K: Clone + Eq + Hash> Core<K> {
    /// Makes all keys ready that wait for a requested time. Keys that wait only for their backoff
    /// or for a token keep waiting.
    ///
    /// Use it after the wall clock was set, which invalidates the times computed from it.
    pub(crate) fn reschedule_now(&mut self, now: Instant) -> Wake {
        self.advance(now);
        let mut wake = Wake::Nobody;
        for (at, key) in self.waiting.take_delayed() {
            let item = item_of(&mut self.items, &key);
            if matches!(item.state, State::Backoff { later: None, .. }) {
                self.waiting.delayed.insert(at, key);
            } else {
                self.waiting.make_ready(key, item, now);
                wake = Wake::All;
            }
        }
        wake
    }

    /// Ends the backoffs of keys that failed because the apiserver was unavailable, each after the
    /// time that `spread` returns. A run that has begun and fails for this reason has only the
    /// first backoff.
    pub(crate) fn end_outage(&mut self, mut spread: impl FnMut() -> Duration, now: Instant) -> Wake {
        self.advance(now);
        let mut wake = Wake::Nobody;
        for ((mut at, ticket), key) in self.waiting.take_delayed() {
            let item = item_of(&mut self.items, &key);
            if let State::Backoff {
                is_unavailable: true, ..
            } = item.state
            {
                item.at = item.at.min(now + spread());
                at = item.at;
                wake = Wake::All;
            }
            self.waiting.delayed.insert((at, ticket), key);
        }
        for key in self.running.values() {
            if let State::Running { outage_ended, .. } = &mut item_of(&mut self.items, key).state {
                *outage_ended = true;
            }
        }
        wake
    }
}
