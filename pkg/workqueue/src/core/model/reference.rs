//! The model: a list of waiting keys that is scanned completely at every millisecond and by every
//! call.

use std::collections::BTreeMap;

use super::{
    super::{Flow, Lane, ready_queue::MAX_PASSED_OVER},
    End, Key,
};

/// The budget: a token in every 20 ms and a burst of 3, so that retries often wait for a token.
pub(super) const QPS: f32 = 50.0;
const INTERVAL: u64 = 20;
pub(super) const BURST: u32 = 3;

pub(super) fn flow_of(key: Key) -> Flow {
    (key % 3).into()
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    Delayed,
    Backoff,
    Held,
    Ready,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) stage: Stage,
    lane: Lane,
    /// When a delayed key or the backoff is due.
    at: u64,
    /// Whether the key becomes urgent when its time comes.
    timed: bool,
    /// A time after the end of the backoff at which the key needs no token.
    later: Option<u64>,
    /// Whether the end of an outage ends the backoff.
    is_unavailable: bool,
    has_token: bool,
    /// The order of keys that are due at the same time, held, or ready in the same lane.
    order: u64,
}

impl Entry {
    /// Returns the time for which the core has a timer.
    fn timer(&self) -> Option<u64> {
        match self.stage {
            Stage::Delayed | Stage::Backoff => Some(self.at),
            Stage::Held => self.later,
            Stage::Ready => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) key: Key,
    lane: Lane,
    has_token: bool,
    /// When and in which lane the key was requested again.
    again: Option<(u64, Lane)>,
    /// Whether an outage has ended since the run began.
    outage_ended: bool,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) keys: BTreeMap<Key, Entry>,
    pub(super) running: Vec<Running>,
    pub(super) failures: BTreeMap<Key, u32>,
    passed_over: u32,
    closed: bool,
    last_order: u64,
    tokens: i64,
    outstanding: i64,
    /// The time from which the next token is counted.
    refilled: u64,
    /// The flow that last had its turn.
    last_flow: Option<Flow>,
}

#[derive(Debug, Eq, PartialEq)]
pub(super) enum Taken {
    Run(Key, Lane, u32),
    Sleep(u64),
    Idle,
    Closed,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            now: 0,
            keys: BTreeMap::new(),
            running: Vec::new(),
            failures: BTreeMap::new(),
            passed_over: 0,
            closed: false,
            last_order: 0,
            tokens: BURST.into(),
            outstanding: 0,
            refilled: 0,
            last_flow: None,
        }
    }

    fn next_order(&mut self) -> u64 {
        self.last_order += 1;
        self.last_order
    }

    pub(super) fn advance(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += 1;
            self.refill();
            while let Some(key) = self.first_due() {
                if self.keys[&key].stage == Stage::Backoff {
                    let order = self.next_order();
                    let entry = self.keys.get_mut(&key).unwrap();
                    (entry.stage, entry.order) = (Stage::Held, order);
                } else {
                    self.make_ready(key, true);
                }
                self.release();
            }
            self.release();
        }
    }

    fn first_due(&self) -> Option<Key> {
        let due = self.keys.iter().filter(|(_, entry)| entry.timer() == Some(self.now));
        due.min_by_key(|(_, entry)| entry.order).map(|(key, _)| *key)
    }

    fn make_ready(&mut self, key: Key, is_due: bool) {
        let order = self.next_order();
        let entry = self.keys.get_mut(&key).unwrap();
        if entry.timed && is_due {
            entry.lane = Lane::Urgent;
        }
        (entry.stage, entry.order) = (Stage::Ready, order);
    }

    fn room(&self) -> i64 {
        i64::from(BURST) - self.outstanding
    }

    fn refill(&mut self) {
        if self.tokens == self.room() {
            self.refilled = self.now;
        } else if self.now - self.refilled == INTERVAL {
            self.tokens += 1;
            self.refilled = self.now;
        }
    }

    /// Gives the tokens to held retries; the flows take turns.
    fn release(&mut self) {
        while self.tokens > 0 {
            let held = || self.keys.iter().filter(|(_, entry)| entry.stage == Stage::Held);
            let flows = held().map(|(key, _)| flow_of(*key));
            let turn = |flow: &Flow| (self.last_flow.is_some_and(|last| *flow <= last), *flow);
            let Some(flow) = flows.min_by_key(turn) else { return };
            self.last_flow = Some(flow);
            self.release_from(flow);
        }
    }

    fn release_from(&mut self, flow: Flow) {
        let held = self.keys.iter().filter(|(_, entry)| entry.stage == Stage::Held);
        let in_flow = held.filter(|(key, _)| flow_of(**key) == flow);
        let first = in_flow.min_by_key(|(_, entry)| entry.order).map(|(key, _)| *key);
        if let Some(key) = first.filter(|_| self.tokens > 0) {
            self.refill();
            self.tokens -= 1;
            self.outstanding += 1;
            self.make_ready(key, false);
            self.keys.get_mut(&key).unwrap().has_token = true;
        }
    }

    fn place(&mut self, key: Key, at: u64, lane: Lane, timed: bool) {
        let is_due = at <= self.now;
        let order = self.next_order();
        let entry = Entry {
            stage: if is_due { Stage::Ready } else { Stage::Delayed },
            lane: if timed && is_due { Lane::Urgent } else { lane },
            at,
            timed,
            later: None,
            is_unavailable: false,
            has_token: false,
            order,
        };
        self.keys.insert(key, entry);
    }

    pub(super) fn add(&mut self, key: Key, at: u64, lane: Lane) {
        if self.closed {
            return;
        }
        if let Some(running) = self.running.iter_mut().find(|running| running.key == key) {
            running.again = Some(running.again.map_or((at, lane), |(a, l)| (a.min(at), l.min(lane))));
            return;
        }
        let (now, order) = (self.now, self.last_order + 1);
        let Some(entry) = self.keys.get_mut(&key) else {
            return self.place(key, at, lane, false);
        };
        let merged = entry.lane.min(lane);
        match entry.stage {
            Stage::Ready if lane < entry.lane => {
                (entry.lane, entry.order) = (lane, order);
                self.last_order = order;
            }
            Stage::Ready => {}
            Stage::Delayed if entry.timed && at >= entry.at => {}
            Stage::Delayed if entry.timed => self.place(key, at, lane, false),
            Stage::Delayed if at >= entry.at => entry.lane = merged,
            Stage::Backoff if at > entry.at => {
                entry.lane = merged;
                entry.later = Some(entry.later.map_or(at, |later| later.min(at)));
            }
            Stage::Held if at > now => {
                entry.lane = merged;
                entry.later = Some(entry.later.map_or(at, |later| later.min(at)));
            }
            Stage::Delayed | Stage::Backoff | Stage::Held => self.place(key, at, merged, false),
        }
    }

    pub(super) fn resync(&mut self, key: Key) {
        if !self.failures.contains_key(&key) {
            self.add(key, self.now, Lane::Routine);
        }
    }

    pub(super) fn reschedule_now(&mut self) {
        let has_time = |entry: &Entry| entry.stage != Stage::Backoff || entry.later.is_some();
        let timers = self.keys.iter().filter(|(_, entry)| has_time(entry));
        let timers = timers.filter_map(|(key, entry)| Some((entry.timer()?, entry.order, *key)));
        let mut timers: Vec<_> = timers.collect();
        timers.sort_unstable();
        for (_, _, key) in timers {
            self.make_ready(key, false);
        }
    }

    pub(super) fn end_outage(&mut self, spread: u64) {
        let end = self.now + spread;
        for entry in self.keys.values_mut() {
            if entry.stage == Stage::Backoff && entry.is_unavailable {
                entry.at = entry.at.min(end);
            }
        }
        for run in &mut self.running {
            run.outage_ended = true;
        }
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.keys.clear();
        let running = &self.running;
        self.failures
            .retain(|key, _| running.iter().any(|running| running.key == *key));
    }

    fn first(&self, lane: Lane) -> Option<Key> {
        let keys = self.keys.iter();
        let ready = keys.filter(|(_, entry)| entry.stage == Stage::Ready && entry.lane == lane);
        ready.min_by_key(|(_, entry)| entry.order).map(|(key, _)| *key)
    }

    fn next_time(&self) -> Option<u64> {
        let timers = self.keys.values().filter_map(Entry::timer);
        let is_held = self.keys.values().any(|entry| entry.stage == Stage::Held);
        let missing = u64::try_from(1 - self.tokens).unwrap_or(0);
        let token = (is_held && self.room() > 0).then(|| self.refilled + INTERVAL * missing);
        timers.chain(token).min()
    }

    pub(super) fn take(&mut self) -> Taken {
        if self.closed {
            return Taken::Closed;
        }
        let (key, lane) = match (self.first(Lane::Urgent), self.first(Lane::Routine)) {
            (None, None) => return self.next_time().map_or(Taken::Idle, Taken::Sleep),
            (Some(_), Some(routine)) if self.passed_over == MAX_PASSED_OVER => (routine, Lane::Routine),
            (Some(urgent), routine) => {
                self.passed_over = routine.map_or(0, |_| self.passed_over + 1);
                (urgent, Lane::Urgent)
            }
            (None, Some(routine)) => (routine, Lane::Routine),
        };
        if lane == Lane::Routine {
            self.passed_over = 0;
        }
        let has_token = self.keys.remove(&key).unwrap().has_token;
        self.running.push(Running {
            key,
            lane,
            has_token,
            again: None,
            outage_ended: false,
        });
        Taken::Run(key, lane, self.failures.get(&key).copied().unwrap_or(0))
    }

    pub(super) fn done(&mut self, n: usize, end: End) -> Option<Key> {
        if self.running.is_empty() {
            return None;
        }
        let Running {
            key,
            lane,
            has_token,
            again,
            outage_ended,
        } = self.running.remove(n % self.running.len());
        let failures = self.failures.remove(&key).unwrap_or(0);
        if has_token {
            self.end_retry(key, end);
        }
        if self.closed {
            return Some(key);
        }
        let is_unavailable = matches!(end, End::RetryUnavailable(_));
        let is_over = is_unavailable && outage_ended;
        let backoff = (5u64 << if is_over { 0 } else { failures.min(20) }).min(30_000);
        let retry = match end {
            End::Forget => {
                if let Some((at, lane)) = again {
                    self.place(key, at, lane, false);
                }
                return Some(key);
            }
            End::At(delay) => {
                let own = self.now + delay;
                match again {
                    Some((at, lane)) if at < own => self.place(key, at, lane, false),
                    _ => self.place(key, own, lane, true),
                }
                return Some(key);
            }
            End::Retry => backoff,
            End::RetryAfter(least) | End::RetryUnavailable(least) => backoff.max(least),
        };
        self.failures.insert(key, failures + 1);
        let at = self.now + retry;
        let merged = again.map_or(lane, |(_, again)| again.min(lane));
        match again {
            Some((again, _)) if again <= at && !(is_unavailable && again > self.now) => {
                self.place(key, again, merged, false);
            }
            later => {
                let later = later.map(|(later, _)| later);
                self.place(key, later.map_or(at, |later| later.min(at)), merged, false);
                let entry = self.keys.get_mut(&key).unwrap();
                (entry.stage, entry.later) = (Stage::Backoff, later);
                entry.is_unavailable = is_unavailable;
            }
        }
        Some(key)
    }

    pub(super) fn charge(&mut self, key: Key, writes: u32) {
        if self.running.iter().any(|run| run.key == key && run.has_token) {
            self.refill();
            self.tokens = (self.tokens - i64::from(writes)).max(-i64::from(BURST));
        }
    }

    /// Settles the token of a retry.
    fn end_retry(&mut self, key: Key, end: End) {
        self.refill();
        self.outstanding -= 1;
        match end {
            End::Retry | End::RetryAfter(_) | End::RetryUnavailable(_) => {}
            End::Forget | End::At(_) => {
                self.tokens = (self.tokens + 3).min(self.room());
                self.release_from(flow_of(key));
                self.release_from(flow_of(key));
            }
        }
        self.release();
    }
}
