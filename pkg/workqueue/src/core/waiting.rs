//! The waiting keys, which are either delayed until a time or ready for a taker.
//!
//! Architecture Invariant: every waiting key is in exactly one of the delayed keys and the ready
//! queue, and no other key is in either.

use std::{collections::BTreeMap, mem};

use tokio::time::Instant;

use super::{
    Item, State, Wake,
    ready_queue::{Lane, ReadyQueue, Ticket},
};

/// When a key is due, and in which lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) when: Instant,
    pub(super) lane: Lane,
    /// Whether the key becomes urgent when its time comes, but not before.
    pub(super) timed: bool,
}

impl Due {
    /// Merges two due times: returns the earlier time in the higher lane.
    ///
    /// If only one of the two is timed, the earlier one is returned unchanged, because a timed key
    /// becomes urgent only at its own time. If both have the same time, the timed one is returned.
    pub(super) fn or(self, other: Self) -> Self {
        if self.timed == other.timed {
            return Self {
                when: self.when.min(other.when),
                lane: self.lane.min(other.lane),
                timed: self.timed,
            };
        }
        let (timed, untimed) = if self.timed { (self, other) } else { (other, self) };
        if untimed.when < timed.when { untimed } else { timed }
    }
}

#[derive(Debug)]
pub(super) struct Waiting<K> {
    /// Delayed keys, ordered by time and then by insertion.
    pub(super) delayed: BTreeMap<(Instant, Ticket), K>,
    pub(super) ready_queue: ReadyQueue<K>,
    last_ticket: Ticket,
    added: u64,
}

impl<K> Waiting<K> {
    pub(super) fn new() -> Self {
        Self {
            delayed: BTreeMap::new(),
            ready_queue: ReadyQueue::new(),
            last_ticket: 0,
            added: 0,
        }
    }

    /// Adds a key that is not waiting yet.
    pub(super) fn place(&mut self, key: K, due: Due, failures: u32, now: Instant) -> (Item, Wake) {
        let Due { when, lane, timed } = due;
        let lane = if timed && when <= now { Lane::Urgent } else { lane };
        let (ticket, state, wake) = if when <= now {
            (self.enqueue(key, lane), State::Ready, Wake::One)
        } else {
            let is_earliest = self.next_time().is_none_or(|first| when < first);
            let ticket = self.next_ticket();
            self.delayed.insert((when, ticket), key);
            (
                ticket,
                State::Delayed,
                if is_earliest { Wake::All } else { Wake::Nobody },
            )
        };
        let item = Item {
            failures,
            lane,
            ticket,
            at: when,
            timed,
            state,
        };
        (item, wake)
    }

    /// Appends a key to a lane.
    pub(super) fn enqueue(&mut self, key: K, lane: Lane) -> Ticket {
        let ticket = self.next_ticket();
        self.added += 1;
        self.ready_queue.push(ticket, key, lane);
        ticket
    }

    /// Moves a key from the routine lane to the end of the urgent one.
    pub(super) fn raise(&mut self, from: Ticket) -> Ticket {
        let to = self.next_ticket();
        self.ready_queue.raise(from, to);
        to
    }

    /// Removes and returns the first key whose time has come.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<K> {
        let first = self.delayed.first_entry()?;
        let (when, _) = *first.key();
        (when <= now).then(|| first.remove())
    }

    /// Removes and returns all delayed keys, ordered by time.
    pub(super) fn take_delayed(&mut self) -> BTreeMap<(Instant, Ticket), K> {
        mem::take(&mut self.delayed)
    }

    /// Returns the earliest time of a delayed key.
    pub(super) fn next_time(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|(&(when, _), _)| when)
    }

    pub(super) fn clear(&mut self) {
        self.delayed.clear();
        self.ready_queue.clear();
    }

    /// Returns how many keys became ready since the last call.
    pub(super) fn drain_added(&mut self) -> u64 {
        mem::take(&mut self.added)
    }

    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }
}
