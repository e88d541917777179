//! The state machine of one queue: which keys are ready, delayed or running, and how each call
//! changes that.
//!
//! One rule covers adds, delays, redelivery and backoff: **a key has one due time, the earliest
//! that was requested, in the highest lane that was requested.** controller-runtime's priority
//! queue has the same rule. client-go's delaying queue delivers a key twice if it was added both
//! for now and for later. Merging loses nothing, because a reconcile reads the state rather than
//! the event, and requests its own next time.
//!
//! Architecture Invariant: pure. The time is an argument, and the takers to wake are a result.
//!
//! Architecture Invariant: every key is in `items` and in exactly one of the ordered maps: the
//! delayed keys, a lane of the ready queue, or `running`. So memory is bounded by distinct keys,
//! not by calls, and no failure counter outlives its key.

#[cfg(test)]
#[cfg(not(loom))]
mod model;
mod progress;
mod ready_queue;
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

pub use self::{progress::Progress, ready_queue::Lane};
use self::{
    progress::ProgressTracker,
    ready_queue::Ticket,
    waiting::{Due, Waiting},
};
use crate::backoff::Backoff;

/// The longest delay. It keeps additions to instants from overflowing for any `Retry-After`.
const LONGEST_DELAY: Duration = Duration::from_hours(365 * 24);

/// The capacity below which the table of keys is not shrunk.
const SMALL_TABLE: usize = 1024;

/// The outcome of a run.
///
/// `Retry` and `RetryAfter` keep the key in the lane in which it ran. After `At`, the key becomes
/// urgent when its time comes.
///
/// A key that was added while it ran is ready again at once, whatever the outcome, because the run
/// may have missed that change. Its failures still count, so the backoff continues if the next run
/// fails too. The delay of the failed run is skipped, because the next run decides again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Success. The key is not run again until it is added. Resets the failures.
    Forget,
    /// Failure. The key is retried after the backoff: 5 ms, doubled by each consecutive failure, at
    /// most 30 s.
    Retry,
    /// Failure. The key is retried after the backoff, but not before this delay, such as a
    /// `Retry-After`. It counts as a failure like `Retry`.
    RetryAfter(Duration),
    /// Success. The key runs again at this time, in the urgent lane. Resets the failures.
    At(Instant),
}

/// The state of a queue at one time, for gauges.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueueSnapshot {
    /// The number of keys that can be taken now.
    pub ready: usize,
    /// The number of keys that wait for their time or are in backoff.
    pub delayed: usize,
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
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    failures: u32,
    lane: Lane,
    /// The position of the key in the ordered map of its state.
    ticket: Ticket,
    /// When a waiting key is due, or when the run of a running key started.
    at: Instant,
    /// Whether a waiting key becomes urgent when its time comes.
    timed: bool,
    state: State,
}

impl Item {
    /// Returns the due time of a waiting key.
    fn due(&self) -> Due {
        Due {
            when: self.at,
            lane: self.lane,
            timed: self.timed,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Delayed,
    Ready,
    Running {
        /// When the key is due again, if it was added while running.
        again: Option<Due>,
    },
}

impl<K: Clone + Eq + Hash> Core<K> {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            items: HashMap::new(),
            waiting: Waiting::new(),
            running: BTreeMap::new(),
            tracker: ProgressTracker::default(),
            retried: 0,
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
            State::Running { again } => {
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
            State::Delayed => {
                let before = *item;
                let due = before.due().or(due);
                item.lane = due.lane;
                if due.when == before.at {
                    return Wake::Nobody;
                }
                self.waiting.delayed.remove(&(before.at, before.ticket));
                let (placed, wake) = self.waiting.place(entry.key().clone(), due, before.failures, now);
                entry.insert(placed);
                wake
            }
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
        item.state = State::Running { again: None };
        self.running.insert(ticket, key);
        self.tracker.taken(now);
        Take::Run(run)
    }

    /// Ends the run of a key. Returns `None` without any effect if the key is not running.
    pub(crate) fn done(&mut self, key: &K, outcome: Outcome, now: Instant) -> Option<Done> {
        self.advance(now);
        let (key, item) = self.items.remove_entry(key)?;
        let State::Running { again } = item.state else {
            self.items.insert(key, item);
            return None;
        };
        self.running.remove(&item.ticket);
        self.tracker.done(item.ticket, now);
        let retry_at = |least: Duration| now + self.backoff.delay(item.failures).max(least).min(LONGEST_DELAY);
        let (failed, next) = match outcome {
            Outcome::Forget => (false, None),
            Outcome::Retry => (true, Some(retry_at(Duration::ZERO))),
            Outcome::RetryAfter(least) => (true, Some(retry_at(least))),
            Outcome::At(when) => (false, Some(when.max(now))),
        };
        let failures = if failed { item.failures.saturating_add(1) } else { 0 };
        let from_outcome = next.map(|when| Due {
            when,
            lane: item.lane,
            timed: matches!(outcome, Outcome::At(_)),
        });
        let due = match (from_outcome, again) {
            (Some(from_outcome), Some(again)) => Some(from_outcome.or(again)),
            (from_outcome, again) => from_outcome.or(again),
        };
        let wake = if let Some(due) = due
            && !self.closed
        {
            self.retried += u64::from(next.is_some_and(|when| when > now));
            let (item, wake) = self.waiting.place(key.clone(), due, failures, now);
            self.items.insert(key, item);
            wake
        } else {
            self.shrink();
            Wake::Nobody
        };
        let ran = now.saturating_duration_since(item.at);
        Some(Done { ran, wake })
    }

    /// Makes all keys ready that wait for a requested time. Keys in backoff keep waiting.
    ///
    /// Use it after the wall clock was set, which invalidates the times computed from it.
    pub(crate) fn reschedule_now(&mut self, now: Instant) -> Wake {
        self.advance(now);
        let mut wake = Wake::Nobody;
        for (at, key) in self.waiting.take_delayed() {
            let item = item_of(&mut self.items, &key);
            if item.failures == 0 {
                item.state = State::Ready;
                item.timed = false;
                item.at = now;
                item.ticket = self.waiting.enqueue(key, item.lane);
                wake = Wake::All;
            } else {
                self.waiting.delayed.insert(at, key);
            }
        }
        wake
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

    /// Returns the state of the queue. Linear in the number of running keys, which is at most the
    /// number of workers.
    pub(crate) fn observe(&mut self, now: Instant) -> QueueSnapshot {
        self.advance(now);
        let mut snapshot = QueueSnapshot {
            ready: self.waiting.ready_queue.len(),
            delayed: self.waiting.delayed.len(),
            running: self.running.len(),
            ..QueueSnapshot::default()
        };
        let keys = self.waiting.ready_queue.heads().chain(self.running.values());
        for item in keys.filter_map(|key| self.items.get(key)) {
            let age = now.saturating_duration_since(item.at);
            if let State::Running { again } = item.state {
                snapshot.longest_running = snapshot.longest_running.max(Some(age));
                snapshot.unfinished += age;
                snapshot.rerun += usize::from(again.is_some_and(|due| due.when <= now));
            } else {
                snapshot.oldest_ready = snapshot.oldest_ready.max(Some(age));
            }
        }
        snapshot
    }

    /// Returns the events since the last call.
    pub(crate) fn drain_tally(&mut self) -> Tally {
        Tally {
            added: self.waiting.drain_added(),
            retried: mem::take(&mut self.retried),
        }
    }

    /// Makes due keys ready. Every call starts with this step, so the order of keys does not depend
    /// on how often the queue is called.
    fn advance(&mut self, now: Instant) {
        while let Some(key) = self.waiting.pop_due(now) {
            let item = item_of(&mut self.items, &key);
            item.state = State::Ready;
            if item.timed {
                item.lane = Lane::Urgent;
            }
            item.ticket = self.waiting.enqueue(key, item.lane);
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
