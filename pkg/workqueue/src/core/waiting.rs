//! The waiting keys: delayed until a time, held until there is a token, or ready for a taker.
//!
//! Architecture Invariant: every waiting key is in exactly one of the delayed keys, the held
//! retries and the ready queue, and no other key is in any of them. Only a held retry that also has
//! a requested time is in the delayed keys too, under the same ticket.

use std::{collections::BTreeMap, mem};

use tokio::time::Instant;

use super::{
    Wake,
    held_retries::{Flow, HeldRetries},
    item::{Due, Item, State},
    ready_queue::{Lane, ReadyQueue, Ticket},
    retry_budget::{RetryBudget, TokenBucket},
};

#[derive(Debug)]
pub(super) struct Waiting<K> {
    /// Delayed keys, ordered by time and then by insertion.
    pub(super) delayed: BTreeMap<(Instant, Ticket), K>,
    pub(super) held: HeldRetries<K>,
    pub(super) bucket: TokenBucket,
    pub(super) ready_queue: ReadyQueue<K>,
    flow_of: fn(&K) -> Flow,
    last_ticket: Ticket,
    added: u64,
}

impl<K: Clone> Waiting<K> {
    pub(super) fn new(budget: RetryBudget, flow_of: fn(&K) -> Flow) -> Self {
        Self {
            delayed: BTreeMap::new(),
            held: HeldRetries::new(),
            bucket: TokenBucket::new(budget),
            ready_queue: ReadyQueue::new(),
            flow_of,
            last_ticket: 0,
            added: 0,
        }
    }

    /// Adds a key that is not waiting yet and is due at a requested time.
    pub(super) fn place(&mut self, key: K, due: Due, failures: u32, now: Instant) -> (Item, Wake) {
        let Due { when, lane, timed } = due;
        let lane = if timed && when <= now { Lane::Urgent } else { lane };
        let (ticket, state, wake) = if when <= now {
            (self.enqueue(key, lane), State::Ready, Wake::One)
        } else {
            let wake = self.wake_for(when);
            (self.delay(key, when), State::Delayed, wake)
        };
        let item = Item {
            failures,
            lane,
            ticket,
            at: when,
            timed,
            has_token: false,
            state,
        };
        (item, wake)
    }

    /// Adds a failed key that is not waiting yet. It waits for the end of its backoff, and then for
    /// a token, but no longer than until the requested time in `backoff`.
    pub(super) fn back_off(&mut self, key: K, end: Due, backoff: State, failures: u32) -> Item {
        Item {
            failures,
            lane: end.lane,
            ticket: self.delay(key, end.when),
            at: end.when,
            timed: false,
            has_token: false,
            state: backoff,
        }
    }

    /// Merges a requested time into those of a key that is delayed, in backoff or held.
    pub(super) fn reschedule(&mut self, key: K, item: &mut Item, due: Due, now: Instant) -> Wake {
        let earlier = |later: Option<Instant>| Some(later.map_or(due.when, |later| later.min(due.when)));
        let due = match item.state {
            State::Backoff { later, is_unavailable } if due.when > item.at => {
                item.lane = item.lane.min(due.lane);
                item.state = State::Backoff {
                    later: earlier(later),
                    is_unavailable,
                };
                return Wake::Nobody;
            }
            State::Held { later } if due.when > now => {
                let wake = self.wake_for(due.when);
                item.lane = item.lane.min(due.lane);
                self.remove_timer(later, item.ticket);
                item.state = State::Held { later: earlier(later) };
                self.insert_timer(earlier(later), item.ticket, key);
                return wake;
            }
            State::Delayed => {
                let due = item.due().or(due);
                item.lane = due.lane;
                if due.when == item.at {
                    return Wake::Nobody;
                }
                due
            }
            _ => Due {
                lane: item.lane.min(due.lane),
                ..due
            },
        };
        match item.state {
            State::Held { later } => {
                self.remove_timer(later, item.ticket);
                self.held.remove((self.flow_of)(&key), item.ticket);
            }
            _ => self.remove_timer(Some(item.at), item.ticket),
        }
        let (placed, wake) = self.place(key, due, item.failures, now);
        *item = placed;
        wake
    }

    /// Continues with a key that was removed from the delayed keys at its time. At the end of a
    /// backoff, it is held until there is a token; otherwise it is ready.
    pub(super) fn end_delay(&mut self, key: K, item: &mut Item, now: Instant) {
        if let State::Backoff { later, .. } = item.state {
            item.ticket = self.next_ticket();
            item.state = State::Held { later };
            self.insert_timer(later, item.ticket, key.clone());
            self.held.insert((self.flow_of)(&key), item.ticket, key);
        } else {
            if item.timed {
                item.lane = Lane::Urgent;
            }
            self.make_ready(key, item, now);
        }
    }

    /// Makes a key ready that was removed from the delayed keys.
    pub(super) fn make_ready(&mut self, key: K, item: &mut Item, now: Instant) {
        if let State::Held { .. } = item.state {
            self.held.remove((self.flow_of)(&key), item.ticket);
        }
        item.state = State::Ready;
        item.timed = false;
        item.at = now;
        item.ticket = self.enqueue(key, item.lane);
    }

    /// Removes and returns the next held retry, if there is a token for it.
    pub(super) fn take_held(&mut self, now: Instant) -> Option<K> {
        (!self.held.is_empty() && self.bucket.take(now))
            .then(|| self.held.pop())
            .flatten()
    }

    /// Like [`Waiting::take_held`], for the retries in the flow of this key.
    pub(super) fn take_held_from(&mut self, key: &K, now: Instant) -> Option<K> {
        let flow = (self.flow_of)(key);
        (self.held.contains(flow) && self.bucket.take(now))
            .then(|| self.held.pop_from(flow))
            .flatten()
    }

    /// Makes a retry ready that was removed from the held ones and has a token.
    pub(super) fn release(&mut self, key: K, item: &mut Item, now: Instant) {
        if let State::Held { later } = item.state {
            self.remove_timer(later, item.ticket);
        }
        item.has_token = true;
        item.state = State::Ready;
        item.at = now;
        item.ticket = self.enqueue(key, item.lane);
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

    /// Returns the earliest time of a delayed key, or of a token for a held one.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let delayed = self.delayed.first_key_value().map(|(&(when, _), _)| when);
        let token = (!self.held.is_empty()).then(|| self.bucket.next_token()).flatten();
        delayed.into_iter().chain(token).min()
    }

    pub(super) fn clear(&mut self) {
        self.delayed.clear();
        self.held.clear();
        self.ready_queue.clear();
    }

    /// Returns how many keys became ready since the last call.
    pub(super) fn drain_added(&mut self) -> u64 {
        mem::take(&mut self.added)
    }

    /// Returns whom to wake for a key that is due at this time and not waiting yet.
    fn wake_for(&self, when: Instant) -> Wake {
        if self.next_time().is_none_or(|first| when < first) {
            Wake::All
        } else {
            Wake::Nobody
        }
    }

    fn delay(&mut self, key: K, when: Instant) -> Ticket {
        let ticket = self.next_ticket();
        self.delayed.insert((when, ticket), key);
        ticket
    }

    fn insert_timer(&mut self, when: Option<Instant>, ticket: Ticket, key: K) {
        if let Some(when) = when {
            self.delayed.insert((when, ticket), key);
        }
    }

    fn remove_timer(&mut self, when: Option<Instant>, ticket: Ticket) {
        if let Some(when) = when {
            self.delayed.remove(&(when, ticket));
        }
    }

    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }
}
