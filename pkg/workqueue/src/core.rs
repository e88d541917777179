//! The state of one queue and every rule about it: who is ready, who waits, who runs, and what follows from each call.
//!
//! One rule covers adds, delays, redelivery and backoff: **a key has one due, the earliest that anyone asked for, in
//! the highest lane that anyone asked for.** It is the rule of controller-runtime's priority queue; client-go's
//! delaying queue delivers a key that was added both now and later twice. Nothing is lost by it, because a reconcile
//! sees the state and not the event, and asks for its own next time.
//!
//! Architecture Invariant: no async, no clock, no lock, no log, no randomness; the time is an argument, and whom to
//! wake is a result. Every key is held in `items` and in exactly one order, of `waiting` or `running`, so memory is
//! bounded by distinct keys and never by calls, and no failure counter outlives its key.

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

/// No delay is longer than this: it keeps sums of instants from overflowing, whatever a server's `Retry-After` says.
const LONGEST_DELAY: Duration = Duration::from_hours(365 * 24);

/// Below this capacity the table of keys is not worth shrinking.
const SMALL_TABLE: usize = 1024;

/// How a run of a key ended. One value ends it; there is nothing else to remember.
///
/// `Retry` and `RetryAfter` keep the key in the lane in which it ran; after `At` it is urgent, since who names a time
/// means it. A key that was added while it ran is ready
/// again at once, whatever the outcome: what was added is news that the run has not seen, and may be the cure. Its
/// failures still count, so that the backoff goes on from where it was if the next run fails too; the delay of the
/// failed run is not served in addition, because the next run decides anew.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Success, and nothing more to do until the key is added. Failures are forgotten.
    Forget,
    /// Failure: again after the backoff (5 ms, doubled by each failure in a row, at most 30 s).
    Retry,
    /// Failure: again after the backoff, but not before this delay (a server's `Retry-After`). It counts as a failure
    /// like `Retry`.
    RetryAfter(Duration),
    /// Success, and again at this time, urgent when it comes. Failures are forgotten.
    At(Instant),
}

/// A queue at one moment, for gauges.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueueSnapshot {
    /// Keys that could be taken now.
    pub ready: usize,
    /// Keys that wait for their time: scheduled, or in backoff.
    pub delayed: usize,
    /// Keys that are held by a worker.
    pub running: usize,
    /// Those of `running` that will be ready again as soon as they end. `workqueue_depth` is this and `ready`, as in
    /// client-go.
    pub rerun: usize,
    /// How long ago the key at the head of a lane was due; of the two lanes the longer time. `None` when nothing is
    /// ready.
    pub oldest_ready: Option<Duration>,
    /// How long the longest of the runs that have not ended has taken. `None` when nothing runs.
    pub longest_running: Option<Duration>,
    /// The sum of the time that the runs which have not ended have taken.
    pub unfinished: Duration,
}

/// What a taker has to do.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Take<K> {
    /// Work on this key, then call `done`.
    Run(Run<K>),
    /// Look again at this time, or when woken.
    Sleep(Instant),
    /// Look again when woken.
    Idle,
    /// Stop: there will never be work again.
    Closed,
}

/// A key that was handed to a worker.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Run<K> {
    pub(crate) key: K,
    pub(crate) lane: Lane,
    /// How many runs in a row had failed before this one.
    pub(crate) failures: u32,
    /// How long the key has been due. Counted from the add, even of one during a run of the same key, as client-go
    /// counts it.
    pub(crate) waited: Duration,
}

/// What the end of a run amounts to.
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Done {
    /// How long the run took.
    pub(crate) ran: Duration,
    pub(crate) wake: Wake,
}

/// Whom to wake among the takers that sleep.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wake {
    Nobody,
    /// One key more is ready.
    One,
    /// The time to look again came nearer, or the queue was closed. Everybody, so that no sleeper relies on another one
    /// to keep the time.
    All,
}

/// What happened since the last call of `drain_tally`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    /// Keys that became ready. An add of a key that is ready already is not counted, as in client-go.
    pub(crate) added: u64,
    /// Keys that were asked for later, by backoff or by time, as client-go counts every `AddAfter`.
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
    /// Where the key is in the order of its state.
    ticket: Ticket,
    /// Of a key that waits, when it is due; of a key that runs, when the run began.
    at: Instant,
    /// Of a key that waits: whether it is urgent when its time comes.
    timed: bool,
    state: State,
}

impl Item {
    /// Of a key that waits.
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
    Running { again: Option<Due> },
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

    /// Wants the key now.
    pub(crate) fn add(&mut self, key: K, lane: Lane, now: Instant) -> Wake {
        self.add_at(key, now, lane, now)
    }

    /// Wants the key at `when`; a time that has passed means now.
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

    /// Hands out the key that is next, if one is ready.
    pub(crate) fn take(&mut self, now: Instant) -> Take<K> {
        if self.closed {
            return Take::Closed;
        }
        self.advance(now);
        let Some((ticket, key)) = self.waiting.ready_queue.pop() else {
            return self.waiting.next_time().map_or(Take::Idle, Take::Sleep);
        };
        let item = held(&mut self.items, &key);
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

    /// Ends the run of a key. `None`, and nothing happens, when the key does not run.
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
        let own = next.map(|when| Due {
            when,
            lane: item.lane,
            timed: matches!(outcome, Outcome::At(_)),
        });
        let due = match (own, again) {
            (Some(own), Some(again)) => Some(own.or(again)),
            (own, again) => own.or(again),
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

    /// Makes ready what waits for a time. What is in backoff goes on waiting.
    ///
    /// For when times have lost their meaning, because somebody has set the clock by which they were named.
    pub(crate) fn reschedule_now(&mut self, now: Instant) -> Wake {
        self.advance(now);
        let mut wake = Wake::Nobody;
        for (at, key) in self.waiting.take_delayed() {
            let item = held(&mut self.items, &key);
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

    /// Drops everything that waits, and every later add. Keys that run may still end.
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

    /// Whether no key runs.
    pub(crate) fn is_drained(&self) -> bool {
        self.running.is_empty()
    }

    /// The queue as it is now. Linear in the keys that run, which are no more than there are workers.
    pub(crate) fn observe(&mut self, now: Instant) -> QueueSnapshot {
        self.advance(now);
        let mut seen = QueueSnapshot {
            ready: self.waiting.ready_queue.len(),
            delayed: self.waiting.delayed.len(),
            running: self.running.len(),
            ..QueueSnapshot::default()
        };
        let keys = self.waiting.ready_queue.heads().chain(self.running.values());
        for item in keys.filter_map(|key| self.items.get(key)) {
            let age = now.saturating_duration_since(item.at);
            if let State::Running { again } = item.state {
                seen.longest_running = seen.longest_running.max(Some(age));
                seen.unfinished += age;
                seen.rerun += usize::from(again.is_some_and(|due| due.when <= now));
            } else {
                seen.oldest_ready = seen.oldest_ready.max(Some(age));
            }
        }
        seen
    }

    /// What happened since the last call.
    pub(crate) fn drain_tally(&mut self) -> Tally {
        Tally {
            added: self.waiting.drain_added(),
            retried: mem::take(&mut self.retried),
        }
    }

    /// Makes ready what is due. The first step of every call, so that order does not depend on how often somebody
    /// looks.
    fn advance(&mut self, now: Instant) {
        while let Some(key) = self.waiting.pop_due(now) {
            let item = held(&mut self.items, &key);
            item.state = State::Ready;
            if item.timed {
                item.lane = Lane::Urgent;
            }
            item.ticket = self.waiting.enqueue(key, item.lane);
        }
    }

    /// Gives memory back after a burst: when seven eighths of a large table are empty. The next shrink is then so many
    /// removals away that its cost does not show.
    fn shrink(&mut self) {
        let capacity = self.items.capacity();
        if capacity > SMALL_TABLE && self.items.len() < capacity / 8 {
            self.items.shrink_to(capacity / 4);
        }
    }
}

/// The item of a key that was found in one of the orders.
#[expect(
    clippy::expect_used,
    reason = "a key without an item is a bug in this file, which the model test looks for"
)]
fn held<'a, K: Eq + Hash>(items: &'a mut HashMap<K, Item>, key: &K) -> &'a mut Item {
    items
        .get_mut(key)
        .expect("a key enters an order together with its item")
}
