//! Runs random histories of a queue under paused time. Takers arrive, are cancelled, finish and
//! fail. Keys are added for now and for later, and rescheduled. Retries exhaust their budget. The
//! queue is closed. No key is lost, late, held twice, or returned without a request.

use std::collections::BTreeSet;

use portreeve_metrics::Registry;
use proptest::prelude::*;
use tokio::time::{Instant, advance};

use super::{manual_poll::Waiter, millis};
use crate::{Lane, Metrics, Outcome, Queue, QueueSnapshot, RetryBudget, Work};

/// A number refers to the `n`th taker or work item, modulo their number.
#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive,
    Poll(usize),
    /// All woken takers run.
    Settle,
    Cancel(usize),
    Add(u8, Lane),
    AddAt(u8, u64, Lane),
    Finish(usize, End),
    Advance(u64),
    RescheduleNow,
    EndOutage(u64),
    /// A task starts to wait in `drained`.
    Wait,
    Close,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Forget,
    Retry,
    RetryAfter(u64),
    RetryUnavailable(u64),
    At(u64),
    /// Drops the work, as a panicking worker does.
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = any::<usize>;
    let lane = || prop_oneof![Just(Lane::Urgent), Just(Lane::Routine)];
    let end = prop_oneof![
        4 => Just(End::Forget),
        2 => Just(End::Retry),
        1 => (0..40u64).prop_map(End::RetryAfter),
        1 => (0..40u64).prop_map(End::RetryUnavailable),
        2 => (0..40u64).prop_map(End::At),
        1 => Just(End::Drop),
    ];
    let step = prop_oneof![
        24 => Just(Step::Arrive),
        12 => any().prop_map(Step::Poll),
        24 => Just(Step::Settle),
        6 => any().prop_map(Step::Cancel),
        16 => (0..6u8, lane()).prop_map(|(key, lane)| Step::Add(key, lane)),
        12 => (0..6u8, 0..40u64, lane()).prop_map(|(key, delay, lane)| Step::AddAt(key, delay, lane)),
        14 => (any(), end).prop_map(|(n, end)| Step::Finish(n, end)),
        8 => (1..20u64).prop_map(Step::Advance),
        6 => Just(Step::RescheduleNow),
        6 => (0..20u64).prop_map(Step::EndOutage),
        2 => Just(Step::Wait),
        1 => Just(Step::Close),
    ];
    prop::collection::vec(step, 0..80)
}

struct Simulation {
    queue: Queue<u8>,
    takers: Vec<Waiter<Option<Work<u8>>>>,
    held: Vec<Work<u8>>,
    drainers: Vec<Waiter<()>>,
    /// The keys that were added or rescheduled since they were last taken.
    requested: BTreeSet<u8>,
}

impl Simulation {
    fn new() -> Self {
        // The jitter is the same in every run.
        fastrand::seed(0);
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let budget = RetryBudget::new(50.0, 2);
        Self {
            queue: Queue::with_retry_budget("test", &metrics, budget, |key| (key % 3).into()),
            takers: Vec::new(),
            held: Vec::new(),
            drainers: Vec::new(),
            requested: BTreeSet::new(),
        }
    }

    fn request(&mut self, key: u8) {
        if !self.queue.is_closed() {
            self.requested.insert(key);
        }
    }

    fn arrive(&mut self) {
        let queue = self.queue.clone();
        self.takers.push(Waiter::new(async move { queue.take().await }));
    }

    fn poll(&mut self, n: usize) {
        let Some(taken) = self.takers[n].poll() else { return };
        drop(self.takers.remove(n));
        assert_eq!(
            taken.is_none(),
            self.queue.is_closed(),
            "a taker must get work until the queue is closed"
        );
        let Some(work) = taken else { return };
        let key = *work.key();
        assert!(self.held.iter().all(|held| *held.key() != key), "{key} has two holders");
        assert!(self.requested.remove(&key), "nobody asked for {key}");
        self.held.push(work);
    }

    fn finish(&mut self, n: usize, end: End) {
        let work = self.held.remove(n);
        let key = *work.key();
        let outcome = match end {
            End::Forget => Outcome::Forget,
            End::Retry => Outcome::Retry,
            End::RetryAfter(least) => Outcome::RetryAfter(millis(least)),
            End::RetryUnavailable(least) => Outcome::RetryUnavailable(millis(least)),
            End::At(delay) => Outcome::At(Instant::now() + millis(delay)),
            End::Drop => {
                drop(work);
                return self.request(key);
            }
        };
        work.finish(outcome);
        if outcome != Outcome::Forget {
            self.request(key);
        }
    }

    /// Polls all woken futures, as a runtime would, until none is woken.
    fn settle(&mut self) {
        while let Some(n) = self.takers.iter().position(Waiter::is_woken) {
            self.poll(n);
        }
        while let Some(n) = self.drainers.iter().position(Waiter::is_woken) {
            if self.drainers[n].poll().is_some() {
                assert!(self.held.is_empty(), "drained while work is held");
                drop(self.drainers.remove(n));
            }
        }
        let snapshot = self.queue.observe();
        assert!(
            self.takers.is_empty() || snapshot.ready == 0,
            "a taker sleeps: {snapshot:?}"
        );
        assert!(
            !self.held.is_empty() || self.drainers.is_empty(),
            "nothing runs, but a call of `drained` still waits"
        );
        assert!(
            self.takers.is_empty() || !self.queue.is_closed(),
            "a taker still waits although the queue is closed"
        );
        assert_eq!(snapshot.running, self.held.len());
        let is_held = |key: &u8| self.held.iter().any(|work| work.key() == key);
        let waiting = self.requested.iter().filter(|key| !is_held(key)).count();
        assert_eq!(
            snapshot.ready + snapshot.delayed + snapshot.held,
            waiting,
            "{:?} are wanted: {snapshot:?}",
            self.requested
        );
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Arrive => self.arrive(),
            Step::Poll(n) if !self.takers.is_empty() => self.poll(n % self.takers.len()),
            Step::Settle => self.settle(),
            Step::Cancel(n) if !self.takers.is_empty() => {
                let n = n % self.takers.len();
                drop(self.takers.remove(n));
            }
            Step::Add(key, lane) => {
                self.request(key);
                self.queue.add(key, lane);
            }
            Step::AddAt(key, delay, lane) => {
                self.request(key);
                self.queue.add_at(key, Instant::now() + millis(delay), lane);
            }
            Step::Finish(n, end) if !self.held.is_empty() => self.finish(n % self.held.len(), end),
            Step::Advance(time) => {
                // Advance in small steps, because a single step would hide late takers.
                for _ in 0..time {
                    self.settle();
                    advance(millis(1)).await;
                }
            }
            Step::RescheduleNow => self.queue.reschedule_now(),
            Step::EndOutage(spread) => self.queue.end_outage(|| millis(spread)),
            Step::Wait => {
                let queue = self.queue.clone();
                self.drainers.push(Waiter::new(async move { queue.drained().await }));
            }
            Step::Close => {
                self.queue.close();
                self.requested.clear();
            }
            Step::Poll(_) | Step::Cancel(_) | Step::Finish(..) => {}
        }
    }

    /// Finishes all keys without failures while time advances past every backoff.
    async fn finish_all(&mut self) {
        for _ in 0..4 {
            for _ in 0..=self.requested.len() {
                self.arrive();
                self.settle();
                for _ in 0..self.held.len() {
                    self.finish(0, End::Forget);
                }
            }
            self.settle();
            advance(millis(1_000_000)).await;
        }
        assert_eq!(self.requested, BTreeSet::new(), "these keys were never handed out");
        assert_eq!(self.queue.observe(), QueueSnapshot::default());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_key_is_lost_invented_or_late(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut simulation = Simulation::new();
            for step in steps {
                simulation.step(step).await;
            }
            simulation.finish_all().await;
        });
    }
}
