//! Compares the core with a simple model: a list of pending requests that every call scans
//! completely.

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;
use tokio::time::Instant;

use super::{Core, Lane, Outcome, State, Take, ready_queue::MAX_PASSED_OVER, waiting::Waiting};
use crate::backoff::Backoff;

type Key = u8;

/// A call of the core. Its times are in milliseconds after the call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Add(Key, Lane),
    AddAt(Key, u64, Lane),
    Take,
    /// Ends the `n`th current run, modulo the number of current runs.
    Done(usize, End),
    /// Advances the time.
    Advance(u64),
    RescheduleNow,
    Observe,
    Close,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Forget,
    Retry,
    RetryAfter(u64),
    At(u64),
}

#[derive(Clone, Copy, Debug)]
struct Request {
    when: u64,
    lane: Lane,
    /// Whether the key becomes urgent when its time comes.
    timed: bool,
    /// The time and the number of the call that placed the request. They order requests in the same
    /// lane.
    placed: (u64, usize),
}

#[derive(Clone, Copy, Debug)]
struct Running {
    key: Key,
    lane: Lane,
    /// When and in which lane the key was requested again.
    again: Option<(u64, Lane)>,
}

#[derive(Default, Debug)]
struct Model {
    now: u64,
    calls: usize,
    requests: BTreeMap<Key, Request>,
    running: Vec<Running>,
    failures: BTreeMap<Key, u32>,
    passed_over: u32,
    closed: bool,
}

#[derive(Debug, Eq, PartialEq)]
enum Taken {
    Run(Key, Lane, u32),
    Sleep(u64),
    Idle,
    Closed,
}

impl Request {
    fn lane_at(&self, now: u64) -> Lane {
        if self.timed && self.when <= now {
            Lane::Urgent
        } else {
            self.lane
        }
    }
}

impl Model {
    fn request(&mut self, key: Key, when: u64, lane: Lane, timed: bool) {
        let now = self.now;
        let placed = (when.max(now), self.calls);
        let request = Request {
            when,
            lane,
            timed,
            placed,
        };
        if let Some(running) = self.running.iter_mut().find(|running| running.key == key) {
            running.again = Some(running.again.map_or((when, lane), |(w, l)| (w.min(when), l.min(lane))));
        } else if let Some(before) = self.requests.get_mut(&key) {
            if before.when <= now {
                if lane < before.lane_at(now) {
                    before.lane = lane;
                    before.placed = (now, self.calls);
                }
            } else if before.timed {
                if when < before.when {
                    *before = request;
                }
            } else {
                before.lane = before.lane.min(lane);
                if when < before.when {
                    *before = Request {
                        lane: before.lane,
                        ..request
                    };
                }
            }
        } else {
            self.requests.insert(key, request);
        }
    }

    fn add(&mut self, key: Key, when: u64, lane: Lane) {
        if !self.closed {
            self.request(key, when.max(self.now), lane, false);
        }
    }

    fn reschedule_now(&mut self) {
        let (now, failures) = (self.now, &self.failures);
        let times = self
            .requests
            .iter_mut()
            .filter(|(key, request)| request.when > now && !failures.contains_key(*key));
        let mut times: Vec<_> = times.map(|(_, request)| request).collect();
        times.sort_by_key(|request| (request.when, request.placed));
        for (order, request) in times.into_iter().enumerate() {
            *request = Request {
                when: now,
                lane: request.lane,
                timed: false,
                placed: (now, self.calls + order),
            };
        }
        self.calls += self.requests.len();
    }

    fn first(&self, lane: Lane) -> Option<Key> {
        let ready = self
            .requests
            .iter()
            .filter(|(_, request)| request.when <= self.now && request.lane_at(self.now) == lane);
        ready.min_by_key(|(_, request)| request.placed).map(|(key, _)| *key)
    }

    fn take(&mut self) -> Taken {
        if self.closed {
            return Taken::Closed;
        }
        let (key, lane) = match (self.first(Lane::Urgent), self.first(Lane::Routine)) {
            (None, None) => {
                let next = self.requests.values().map(|request| request.when).min();
                return next.map_or(Taken::Idle, Taken::Sleep);
            }
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
        self.requests.remove(&key);
        self.running.push(Running { key, lane, again: None });
        Taken::Run(key, lane, self.failures.get(&key).copied().unwrap_or(0))
    }

    fn done(&mut self, n: usize, end: End) -> Option<Key> {
        if self.running.is_empty() {
            return None;
        }
        let Running { key, lane, again } = self.running.remove(n % self.running.len());
        let failures = self.failures.remove(&key).unwrap_or(0);
        if self.closed {
            return Some(key);
        }
        let backoff = || (5u64 << failures.min(20)).min(30_000);
        let next = match end {
            End::Forget => None,
            End::Retry => Some(backoff()),
            End::RetryAfter(least) => Some(least.max(backoff())),
            End::At(delay) => Some(delay),
        };
        if matches!(end, End::Retry | End::RetryAfter(_)) {
            self.failures.insert(key, failures + 1);
        }
        let timed = matches!(end, End::At(_));
        let own = next.map(|delay| (self.now + delay, lane, timed));
        let again = again.map(|(when, lane)| (when, lane, false));
        let both = match (own, again) {
            (Some(own), Some(again)) if timed => Some(if again.0 < own.0 { again } else { own }),
            (Some(own), Some(again)) => Some((own.0.min(again.0), own.1.min(again.1), false)),
            (own, again) => own.or(again),
        };
        if let Some((when, lane, timed)) = both {
            self.request(key, when, lane, timed);
        }
        Some(key)
    }
}

struct Pair {
    core: Core<Key>,
    model: Model,
    start: Instant,
}

impl Pair {
    fn new() -> Self {
        Self {
            core: Core::new(Backoff::DEFAULT),
            model: Model::default(),
            start: Instant::now(),
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn call(&mut self, call: Call) {
        self.model.calls += 1;
        let now = self.at(self.model.now);
        match call {
            Call::Add(key, lane) => {
                self.model.add(key, self.model.now, lane);
                self.core.add(key, lane, now);
            }
            Call::AddAt(key, delay, lane) => {
                let when = self.model.now + delay;
                self.model.add(key, when, lane);
                self.core.add_at(key, self.at(when), lane, now);
            }
            Call::Take => {
                self.take();
            }
            Call::Done(n, end) => {
                if let Some(key) = self.model.done(n, end) {
                    let outcome = match end {
                        End::Forget => Outcome::Forget,
                        End::Retry => Outcome::Retry,
                        End::RetryAfter(least) => Outcome::RetryAfter(Duration::from_millis(least)),
                        End::At(delay) => Outcome::At(now + Duration::from_millis(delay)),
                    };
                    assert!(self.core.done(&key, outcome, now).is_some(), "{key} must be running");
                }
            }
            Call::Advance(millis) => self.model.now += millis,
            Call::RescheduleNow => {
                self.core.reschedule_now(now);
                self.model.reschedule_now();
            }
            Call::Observe => self.observe(),
            Call::Close => {
                self.core.close();
                self.model.closed = true;
                self.model.requests.clear();
                self.model
                    .failures
                    .retain(|key, _| self.model.running.iter().any(|running| running.key == *key));
            }
        }
        self.check_ordered_maps();
    }

    fn take(&mut self) -> Taken {
        let now = self.at(self.model.now);
        let taken = match self.core.take(now) {
            Take::Run(run) => Taken::Run(run.key, run.lane, run.failures),
            Take::Sleep(until) => Taken::Sleep(u64::try_from((until - self.start).as_millis()).unwrap()),
            Take::Idle => Taken::Idle,
            Take::Closed => Taken::Closed,
        };
        assert_eq!(taken, self.model.take());
        taken
    }

    fn observe(&mut self) {
        let snapshot = self.core.observe(self.at(self.model.now));
        let ready = self
            .model
            .requests
            .values()
            .filter(|request| request.when <= self.model.now)
            .count();
        assert_eq!(snapshot.ready, ready);
        assert_eq!(snapshot.delayed, self.model.requests.len() - ready);
        assert_eq!(snapshot.running, self.model.running.len());
    }

    /// Checks that every key is in exactly the ordered map of its state, and that there are no
    /// other entries or keys without a request.
    fn check_ordered_maps(&self) {
        let Core {
            items,
            waiting: Waiting {
                delayed, ready_queue, ..
            },
            running,
            ..
        } = &self.core;
        assert_eq!(items.len(), self.model.requests.len() + self.model.running.len());
        assert_eq!(items.len(), delayed.len() + ready_queue.len() + running.len());
        for (key, item) in items {
            let found = match item.state {
                State::Delayed => delayed.get(&(item.at, item.ticket)),
                State::Ready => ready_queue.find(item.ticket, item.lane),
                State::Running { .. } => running.get(&item.ticket),
            };
            assert_eq!(found, Some(key));
            assert_eq!(item.failures, self.model.failures.get(key).copied().unwrap_or(0));
        }
    }

    /// Takes and finishes all keys. It terminates because the model holds each request once.
    fn drain(&mut self) {
        for _ in 0..self.model.running.len() {
            self.call(Call::Done(0, End::Forget));
        }
        loop {
            match self.take() {
                Taken::Run(..) => self.call(Call::Done(0, End::Forget)),
                Taken::Sleep(until) => self.model.now = until,
                Taken::Idle | Taken::Closed => break,
            }
        }
        self.check_ordered_maps();
        assert!(self.core.items.is_empty());
    }
}

fn lane() -> impl Strategy<Value = Lane> {
    prop_oneof![Just(Lane::Urgent), Just(Lane::Routine)]
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let key = 0..12u8;
    let end = prop_oneof![
        3 => Just(End::Forget),
        3 => Just(End::Retry),
        1 => (0..60u64).prop_map(End::RetryAfter),
        1 => (0..60u64).prop_map(End::At),
    ];
    let call = prop_oneof![
        60 => (key.clone(), lane()).prop_map(|(key, lane)| Call::Add(key, lane)),
        40 => (key, 0..60u64, lane()).prop_map(|(key, delay, lane)| Call::AddAt(key, delay, lane)),
        80 => Just(Call::Take),
        60 => (any::<usize>(), end).prop_map(|(n, end)| Call::Done(n, end)),
        40 => (0..30u64).prop_map(Call::Advance),
        5 => Just(Call::RescheduleNow),
        20 => Just(Call::Observe),
        1 => Just(Call::Close),
    ];
    prop::collection::vec(call, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Checks exclusive holders, single redelivery, order in a lane, the share of the routine lane
    /// and the backoff, and that no key is lost or retained.
    #[test]
    fn the_core_behaves_like_the_model(calls in calls()) {
        let mut pair = Pair::new();
        for call in calls {
            pair.call(call);
        }
        pair.drain();
    }

    /// The core never holds more than the distinct keys, however often they are added.
    #[test]
    fn memory_is_bounded_by_distinct_keys(calls in calls()) {
        let mut pair = Pair::new();
        for _ in 0..5 {
            for call in calls.iter().filter(|call| !matches!(call, Call::Close)) {
                pair.call(*call);
            }
            let Core { items, waiting: Waiting { delayed, ready_queue, .. }, running, .. } = &pair.core;
            prop_assert!(items.len() <= 12);
            prop_assert!(delayed.len() + ready_queue.len() + running.len() <= 12);
        }
    }
}
