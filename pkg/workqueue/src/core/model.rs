//! Compares the core with a simple model.

mod reference;

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use self::reference::{BURST, Model, QPS, Stage, Taken, flow_of};
use super::{Core, Lane, Outcome, RetryBudget, Take, item::State, waiting::Waiting};
use crate::backoff::Backoff;

type Key = u8;

/// A call of the core. Its times are in milliseconds after the call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Add(Key, Lane),
    Resync(Key),
    AddAt(Key, u64, Lane),
    Take,
    /// Ends the `n`th current run, modulo the number of current runs.
    Done(usize, End),
    /// Charges a key for writes.
    Charge(Key, u32),
    /// Advances the time.
    Advance(u64),
    RescheduleNow,
    EndOutage(u64),
    Observe,
    Close,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Forget,
    Retry,
    RetryAfter(u64),
    RetryUnavailable(u64),
    At(u64),
}

struct Pair {
    core: Core<Key>,
    model: Model,
    start: Instant,
}

impl Pair {
    fn new() -> Self {
        Self {
            core: Core::new(Backoff::DEFAULT, RetryBudget::new(QPS, BURST), |key| flow_of(*key)),
            model: Model::new(),
            start: Instant::now(),
        }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn call(&mut self, call: Call) {
        let now = self.at(self.model.now);
        match call {
            Call::Add(key, lane) => {
                self.model.add(key, self.model.now, lane);
                self.core.add(key, lane, now);
            }
            Call::Resync(key) => {
                self.model.resync(key);
                self.core.resync(key, now);
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
                        End::RetryUnavailable(least) => Outcome::RetryUnavailable(Duration::from_millis(least)),
                        End::At(delay) => Outcome::At(now + Duration::from_millis(delay)),
                    };
                    assert!(
                        self.core.done(&key, outcome, 0.0, now).is_some(),
                        "{key} must be running"
                    );
                }
            }
            Call::Charge(key, writes) => {
                self.model.charge(key, writes);
                self.core.charge(&key, writes, now);
            }
            Call::Advance(millis) => self.model.advance(millis),
            Call::RescheduleNow => {
                self.core.reschedule_now(now);
                self.model.reschedule_now();
            }
            Call::EndOutage(spread) => {
                self.core.end_outage(|| Duration::from_millis(spread), now);
                self.model.end_outage(spread);
            }
            Call::Observe => self.observe(),
            Call::Close => {
                self.core.close();
                self.model.close();
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
        let count = |stage: &[Stage]| {
            let keys = self.model.keys.values();
            keys.filter(|entry| stage.contains(&entry.stage)).count()
        };
        assert_eq!(snapshot.ready, count(&[Stage::Ready]));
        assert_eq!(snapshot.delayed, count(&[Stage::Delayed, Stage::Backoff]));
        assert_eq!(snapshot.held, count(&[Stage::Held]));
        assert_eq!(snapshot.running, self.model.running.len());
    }

    /// Checks that every key is in exactly the ordered map of its state, and that there are no
    /// other entries or keys without a request.
    fn check_ordered_maps(&self) {
        let Core {
            items,
            waiting:
                Waiting {
                    delayed,
                    held,
                    ready_queue,
                    ..
                },
            running,
            ..
        } = &self.core;
        assert_eq!(items.len(), self.model.keys.len() + self.model.running.len());
        let timers = items
            .values()
            .filter(|item| matches!(item.state, State::Held { later: Some(_) }));
        assert_eq!(
            items.len() + timers.count(),
            delayed.len() + held.len() + ready_queue.len() + running.len()
        );
        for (key, item) in items {
            let found = match item.state {
                State::Delayed | State::Backoff { .. } => delayed.get(&(item.at, item.ticket)),
                State::Held { later } => {
                    let timer = later.and_then(|later| delayed.get(&(later, item.ticket)));
                    assert_eq!(timer, later.map(|_| key));
                    held.find(flow_of(*key), item.ticket)
                }
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
                Taken::Sleep(until) => self.model.advance(until - self.model.now),
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
        1 => (0..60u64).prop_map(End::RetryUnavailable),
        1 => (0..60u64).prop_map(End::At),
    ];
    let call = prop_oneof![
        60 => (key.clone(), lane()).prop_map(|(key, lane)| Call::Add(key, lane)),
        10 => key.clone().prop_map(Call::Resync),
        40 => (key.clone(), 0..60u64, lane()).prop_map(|(key, delay, lane)| Call::AddAt(key, delay, lane)),
        80 => Just(Call::Take),
        60 => (any::<usize>(), end).prop_map(|(n, end)| Call::Done(n, end)),
        10 => (key, 0..3u32).prop_map(|(key, writes)| Call::Charge(key, writes)),
        40 => (0..30u64).prop_map(Call::Advance),
        5 => Just(Call::RescheduleNow),
        5 => (1..20u64).prop_map(Call::EndOutage),
        20 => Just(Call::Observe),
        1 => Just(Call::Close),
    ];
    prop::collection::vec(call, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Checks exclusive holders, single redelivery, order in a lane, the share of the routine lane,
    /// the backoff and the retry budget, and that no key is lost or retained.
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
            let Core { items, waiting: Waiting { delayed, held, ready_queue, .. }, running, .. } = &pair.core;
            prop_assert!(items.len() <= 12);
            // A held retry may have a timer too.
            prop_assert!(delayed.len() + ready_queue.len() + running.len() <= 12);
            prop_assert!(held.len() + ready_queue.len() + running.len() <= 12);
        }
    }
}
