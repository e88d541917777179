//! The state machine of one queue: which keys are ready, delayed or running, and how each call
//! changes that.
//!
//! One rule covers adds, delays, redelivery and backoff: **a key has one due time, the earliest
//! that was requested, in the highest lane that was requested.** controller-runtime's priority
//! queue has the same rule. client-go's delaying queue delivers a key twice if it was added both
//! for now and for later. Merging loses nothing, because a reconcile reads the state rather than
//! the event, and requests its own next time.
//!
//! The exception is a key in backoff that also has a later requested time. The retry may have to
//! wait for a token of the [`RetryBudget`], and the key must not be late for the requested time.
//!
//! Architecture Invariant: pure. Times and random numbers are arguments, and the takers to wake are
//! a result.
//!
//! Architecture Invariant: every key is in `items` and in exactly one of the ordered maps: the
//! delayed keys, the held retries, a lane of the ready queue, or `running`. Only a held retry that
//! also has a requested time is in the delayed keys too. So memory is bounded by distinct keys, not
//! by calls, and no failure counter outlives its key.

mod activity;
mod held_retries;
mod item;
#[cfg(test)]
#[cfg(not(loom))]
mod model;
mod outcome;
mod progress;
mod ready_queue;
mod reschedule;
mod retry_budget;
mod snapshot;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod waiting;

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    hash::Hash,
    mem,
    time::Duration,
};

use tokio::time::Instant;

pub use self::{
    activity::QueueActivity,
    held_retries::{Flow, flow_of},
    outcome::Outcome,
    progress::Progress,
    ready_queue::Lane,
    retry_budget::RetryBudget,
    snapshot::QueueSnapshot,
};
use self::{
    item::{Due, Item, State},
    outcome::Failure,
    progress::ProgressTracker,
    ready_queue::Ticket,
    waiting::Waiting,
};
use crate::backoff::Backoff;

/// The longest delay. It keeps additions to instants from overflowing for any `Retry-After`.
const LONGEST_DELAY: Duration = Duration::from_hours(365 * 24);

/// The capacity below which the table of keys is not shrunk.
const SMALL_TABLE: usize = 1024;

/// The result of a take.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Take<K> {
    /// Work on this key, then call `done`.
    Run(Run<K>),
    /// Try again at this time, or when woken.
    Sleep(Instant),
    /// Try again when woken.
    Idle,
    /// Stop: no key will ever be ready again.
    Closed,
}

/// A key that a worker has taken.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Run<K> {
    pub(crate) key: K,
    pub(crate) lane: Lane,
    /// The number of consecutive failed runs before this one.
    pub(crate) failures: u32,
    /// How long the key has been due. As in client-go, this counts from the add, even if the key
    /// was running then.
    pub(crate) waited: Duration,
}

/// The result of the end of a run.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Done {
    /// The duration of the run.
    pub(crate) ran: Duration,
    pub(crate) wake: Wake,
}

/// Which of the sleeping takers to wake.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wake {
    Nobody,
    /// One more key is ready.
    One,
    /// The earliest due time became earlier, several keys became ready, or the queue was closed.
    /// All takers wake, because each has its own timer.
    All,
}

/// The events since the last call of `drain_tally`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    /// The number of keys that became ready. As in client-go, adding a key that is already ready is
    /// not counted.
    pub(crate) added: u64,
    /// The number of keys that were scheduled for later, by backoff or by time, as client-go counts
    /// every `AddAfter`.
    pub(crate) retried: u64,
}

#[derive(Debug)]
pub(crate) struct Core<K> {
    backoff: Backoff,
    items: HashMap<K, Item>,
    waiting: Waiting<K>,
    running: BTreeMap<Ticket, K>,
    tracker: ProgressTracker,
    retried: u64,
    taken: u64,
    closed: bool,
}

impl<K: Clone + Eq + Hash> Core<K> {
    /// Creates an empty queue. `flow_of` returns the flow of a key, which retries share fairly.
    pub(crate) fn new(backoff: Backoff, budget: RetryBudget, flow_of: fn(&K) -> Flow) -> Self {
        Self {
            backoff,
            items: HashMap::new(),
            waiting: Waiting::new(budget, flow_of),
            running: BTreeMap::new(),
            tracker: ProgressTracker::default(),
            retried: 0,
            taken: 0,
            closed: false,
        }
    }

    /// Makes the key ready now.
    pub(crate) fn add(&mut self, key: K, lane: Lane, now: Instant) -> Wake {
        self.add_at(key, now, lane, now)
    }

    /// Makes the key ready at `when`, or now if `when` has passed.
    pub(crate) fn add_at(&mut self, key: K, when: Instant, lane: Lane, now: Instant) -> Wake {
        if self.closed {
            return Wake::Nobody;
        }
        self.advance(now);
        self.retried += u64::from(when > now);
        let when = when.max(now);
        let due = Due {
            when,
            lane,
            timed: false,
        };
        let mut entry = match self.items.entry(key) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                let (item, wake) = self.waiting.place(entry.key().clone(), due, 0, now);
                entry.insert(item);
                return wake;
            }
        };
        let item = entry.get_mut();
        match &mut item.state {
            State::Running { again, .. } => {
                *again = Some(again.map_or(due, |before| before.or(due)));
                Wake::Nobody
            }
            State::Ready => {
                if lane < item.lane {
                    item.lane = lane;
                    item.ticket = self.waiting.raise(item.ticket);
                }
                Wake::Nobody
            }
            State::Delayed | State::Backoff { .. } | State::Held { .. } => {
                let key = entry.key().clone();
                self.waiting.reschedule(key, entry.get_mut(), due, now)
            }
        }
    }

    /// Makes the key ready now in the routine lane, unless its last run failed.
    ///
    /// Use it if nothing has changed: the key will be retried, and then needs a token.
    pub(crate) fn resync(&mut self, key: K, now: Instant) -> Wake {
        match self.items.get(&key) {
            Some(item) if item.failures > 0 => Wake::Nobody,
            _ => self.add(key, Lane::Routine, now),
        }
    }

    /// Takes tokens for further failed writes of a key's run. Has no effect unless the run is a
    /// retry that has a token.
    pub(crate) fn charge(&mut self, key: &K, writes: u32, now: Instant) {
        self.advance(now);
        let item = self.items.get(key);
        if item.is_some_and(|item| item.has_token && matches!(item.state, State::Running { .. })) {
            self.waiting.bucket.charge(writes, now);
        }
    }

    /// Hands out the next ready key, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> Take<K> {
        if self.closed {
            return Take::Closed;
        }
        self.advance(now);
        let Some((ticket, key)) = self.waiting.ready_queue.pop() else {
            return self.waiting.next_time().map_or(Take::Idle, Take::Sleep);
        };
        let item = item_of(&mut self.items, &key);
        let run = Run {
            key: key.clone(),
            lane: item.lane,
            failures: item.failures,
            waited: now.saturating_duration_since(item.at),
        };
        item.at = now;
        item.state = State::Running {
            again: None,
            outage_ended: false,
        };
        self.running.insert(ticket, key);
        self.taken += 1;
        self.tracker.taken(now);
        Take::Run(run)
    }

    /// Ends the run of a key. Returns `None` without any effect if the key is not running. `jitter`
    /// is a random number from 0 to 1.
    pub(crate) fn done(&mut self, key: &K, outcome: Outcome, jitter: f64, now: Instant) -> Option<Done> {
        self.advance(now);
        let (key, item) = self.items.remove_entry(key)?;
        let State::Running { again, .. } = item.state else {
            self.items.insert(key, item);
            return None;
        };
        self.running.remove(&item.ticket);
        self.tracker.done(item.ticket, now);
        let first = self.waiting.next_time();
        let has_released = item.has_token && self.end_retry(&key, outcome, now);
        let mut wake = self.place_again(key, item, outcome, again, jitter, now);
        let is_earlier = |next| first.is_none_or(|first| next < first);
        if has_released || self.waiting.next_time().is_some_and(is_earlier) {
            wake = Wake::All;
        }
        let ran = now.saturating_duration_since(item.at);
        Some(Done { ran, wake })
    }

    /// Ends a run that had a token, and returns whether that made other retries ready.
    fn end_retry(&mut self, key: &K, outcome: Outcome, now: Instant) -> bool {
        let waiting = &mut self.waiting;
        let before = waiting.held.len();
        if outcome.failure().is_some() {
            waiting.bucket.failed(now);
        } else {
            // The flow of this key has probably recovered, so its retries come first.
            for _ in 0..waiting.bucket.succeeded(now) {
                if let Some(key) = waiting.take_held_from(key, now) {
                    let item = item_of(&mut self.items, &key);
                    waiting.release(key, item, now);
                }
            }
        }
        self.release_held(now);
        self.waiting.held.len() < before
    }

    /// Places a key after its run, or drops it.
    fn place_again(
        &mut self,
        key: K,
        ended: Item,
        outcome: Outcome,
        again: Option<Due>,
        jitter: f64,
        now: Instant,
    ) -> Wake {
        let requested = match outcome {
            Outcome::At(when) => Some(Due {
                when: when.max(now),
                lane: ended.lane,
                timed: true,
            }),
            _ => None,
        };
        let due = match (requested, again) {
            (Some(requested), Some(again)) => Some(requested.or(again)),
            (requested, again) => requested.or(again),
        };
        let (item, wake) = match (outcome.failure(), due) {
            _ if self.closed => return self.drop_key(),
            (Some(failure), again) => self.back_off(key.clone(), ended, failure, again, jitter, now),
            (None, Some(due)) => {
                self.retried += u64::from(requested.is_some_and(|due| due.when > now));
                self.waiting.place(key.clone(), due, 0, now)
            }
            (None, None) => return self.drop_key(),
        };
        self.items.insert(key, item);
        wake
    }

    /// Places a key after a failed run: at the end of its backoff, or at an earlier requested time.
    fn back_off(
        &mut self,
        key: K,
        failed: Item,
        failure: Failure,
        again: Option<Due>,
        jitter: f64,
        now: Instant,
    ) -> (Item, Wake) {
        let Failure { least, is_unavailable } = failure;
        let least = least.min(LONGEST_DELAY);
        let delay = if is_unavailable {
            // The end of an outage ends the wait, even if it came before the failure.
            let failures = if failed.outage_has_ended() { 0 } else { failed.failures };
            self.backoff.delay(failures, Duration::ZERO, jitter).max(least)
        } else {
            self.backoff.delay(failed.failures, least, jitter).min(LONGEST_DELAY)
        };
        let end = Due {
            when: now + delay,
            lane: failed.lane,
            timed: false,
        };
        self.retried += 1;
        let due = again.map_or(end, |again| end.or(again));
        let failures = failed.failures.saturating_add(1);
        // The end of an outage is earlier than a requested time that has not come yet.
        let is_pending = |again: Due| is_unavailable && again.when > now;
        match again {
            Some(again) if again.when <= end.when && !is_pending(again) => self.waiting.place(key, due, failures, now),
            later => {
                let backoff = State::Backoff {
                    later: later.map(|later| later.when),
                    is_unavailable,
                };
                (self.waiting.back_off(key, due, backoff, failures), Wake::Nobody)
            }
        }
    }

    /// Completes the removal of a key.
    fn drop_key(&mut self) -> Wake {
        self.shrink();
        Wake::Nobody
    }

    /// Drops all waiting keys and all later adds. Running keys may still end.
    pub(crate) fn close(&mut self) -> Wake {
        self.closed = true;
        self.waiting.clear();
        self.items.retain(|_, item| matches!(item.state, State::Running { .. }));
        self.shrink();
        Wake::All
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns whether no key is running.
    pub(crate) fn is_drained(&self) -> bool {
        self.running.is_empty()
    }

    /// Returns the events since the last call.
    pub(crate) fn drain_tally(&mut self) -> Tally {
        Tally {
            added: self.waiting.drain_added(),
            retried: mem::take(&mut self.retried),
        }
    }

    /// Makes due keys ready, and retries for which there is a token. Every call starts with this
    /// step, so the order of keys does not depend on how often the queue is called.
    fn advance(&mut self, now: Instant) {
        while let Some(time) = self.waiting.next_time().filter(|time| *time <= now) {
            if let Some(key) = self.waiting.pop_due(time) {
                let item = item_of(&mut self.items, &key);
                self.waiting.end_delay(key, item, time);
            }
            self.release_held(time);
        }
    }

    /// Makes held retries ready until no token is left.
    fn release_held(&mut self, now: Instant) {
        while let Some(key) = self.waiting.take_held(now) {
            let item = item_of(&mut self.items, &key);
            self.waiting.release(key, item, now);
        }
    }

    /// Shrinks the table of keys after a burst, once it is large and less than one eighth full.
    /// Many removals precede each shrink, so its cost is negligible.
    fn shrink(&mut self) {
        let capacity = self.items.capacity();
        if capacity > SMALL_TABLE && self.items.len() < capacity / 8 {
            self.items.shrink_to(capacity / 4);
        }
    }
}

/// Returns the item of a key that was found in one of the ordered maps.
#[expect(
    clippy::expect_used,
    reason = "a key without an item is a bug in this file, which the model test looks for"
)]
fn item_of<'a, K: Eq + Hash>(items: &'a mut HashMap<K, Item>, key: &K) -> &'a mut Item {
    items.get_mut(key).expect("every key in an ordered map has an item")
}
