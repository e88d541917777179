//! Checks that no wake-up is lost. Takers are polled by hand, and only after a wake-up, as a
//! runtime does.
//!
//! These tests cannot interleave takers on different threads between two awaits; `interleavings.rs`
//! covers that.

use proptest::prelude::*;
use tokio::time::{Instant, advance};

use super::{manual_poll::Waiter, millis, queue};
use crate::{Lane, Outcome, Queue, Work};

struct Taker(Waiter<Option<Work<u8>>>);

impl Taker {
    fn new(queue: &Queue<u8>) -> Self {
        let queue = queue.clone();
        Self(Waiter::new(async move { queue.take().await }))
    }

    /// Returns the work if the taker was woken and found a key.
    fn poll(&mut self) -> Option<Work<u8>> {
        self.0.poll().map(|work| work.unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn each_add_wakes_one_taker() {
    let queue = queue();
    let mut takers: Vec<Taker> = (0..4).map(|_| Taker::new(&queue)).collect();
    assert!(takers.iter_mut().all(|taker| taker.poll().is_none()));
    for key in 0..3 {
        queue.add(key, Lane::Urgent);
    }
    let work: Vec<Work<u8>> = takers.iter_mut().filter_map(Taker::poll).collect();
    assert_eq!(work.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn dropping_a_woken_taker_wakes_the_next_one() {
    let queue = queue();
    let (mut first, mut second) = (Taker::new(&queue), Taker::new(&queue));
    assert!(first.poll().is_none() && second.poll().is_none());
    queue.add(0, Lane::Urgent);
    drop(first);
    assert!(second.poll().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_taker_does_not_rely_on_another_takers_timer() {
    let queue = queue();
    let (mut first, mut second) = (Taker::new(&queue), Taker::new(&queue));
    assert!(first.poll().is_none() && second.poll().is_none());
    queue.add_at(0, Instant::now() + millis(10), Lane::Urgent);
    assert!(first.poll().is_none() && second.poll().is_none());
    queue.add(1, Lane::Urgent);
    let busy = first.poll().unwrap();
    advance(millis(10)).await;
    assert_eq!(second.poll().map(|work| *work.key()), Some(0));
    drop(busy);
}

#[tokio::test(start_paused = true)]
async fn an_earlier_time_wakes_a_taker_that_sleeps_until_a_later_one() {
    let queue = queue();
    let mut taker = Taker::new(&queue);
    queue.add_at(0, Instant::now() + millis(100), Lane::Urgent);
    assert!(taker.poll().is_none());
    queue.add_at(1, Instant::now() + millis(10), Lane::Urgent);
    assert!(taker.poll().is_none());
    advance(millis(10)).await;
    assert_eq!(taker.poll().map(|work| *work.key()), Some(1));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive,
    /// The `n`th taker, modulo the number of takers.
    Poll(usize),
    Cancel(usize),
    Add(u8),
    AddAt(u8, u64),
    Finish(usize, Option<u64>),
    Advance(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = any::<usize>;
    let step = prop_oneof![
        3 => Just(Step::Arrive),
        4 => any().prop_map(Step::Poll),
        2 => any().prop_map(Step::Cancel),
        4 => (0..6u8).prop_map(Step::Add),
        3 => (0..6u8, 0..40u64).prop_map(|(key, delay)| Step::AddAt(key, delay)),
        3 => (any(), prop::option::of(0..40u64)).prop_map(|(n, delay)| Step::Finish(n, delay)),
        1 => (1..20u64).prop_map(Step::Advance),
    ];
    prop::collection::vec(step, 0..80)
}

#[derive(Default)]
struct Simulation {
    takers: Vec<Taker>,
    held: Vec<Work<u8>>,
}

impl Simulation {
    fn poll(&mut self, n: usize) -> bool {
        let work = self.takers[n].poll();
        let has_work = work.is_some();
        if has_work {
            self.takers.remove(n);
        }
        self.held.extend(work);
        has_work
    }

    /// Polls woken takers, as a runtime would, until all of them sleep.
    fn settle(&mut self) {
        while let Some(n) = self.takers.iter().position(|taker| taker.0.is_woken()) {
            self.poll(n);
        }
    }

    async fn step(&mut self, queue: &Queue<u8>, step: Step) {
        let (takers, held) = (self.takers.len().max(1), self.held.len().max(1));
        match step {
            Step::Arrive => self.takers.push(Taker::new(queue)),
            Step::Poll(n) if !self.takers.is_empty() => drop(self.poll(n % takers)),
            Step::Cancel(n) if !self.takers.is_empty() => drop(self.takers.remove(n % takers)),
            Step::Add(key) => queue.add(key, Lane::Urgent),
            Step::AddAt(key, delay) => queue.add_at(key, Instant::now() + millis(delay), Lane::Urgent),
            Step::Finish(n, delay) if !self.held.is_empty() => {
                let outcome = delay.map_or(Outcome::Forget, |delay| Outcome::At(Instant::now() + millis(delay)));
                self.held.remove(n % held).finish(outcome);
            }
            Step::Advance(time) => advance(millis(time)).await,
            Step::Poll(_) | Step::Cancel(_) | Step::Finish(..) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Once every woken taker has run, no taker sleeps while a key is ready, even as time advances.
    #[test]
    fn no_taker_sleeps_while_a_key_is_ready(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let queue = queue();
            let mut simulation = Simulation::default();
            for step in steps {
                simulation.step(&queue, step).await;
            }
            for _ in 0..45 {
                simulation.settle();
                assert!(simulation.takers.is_empty() || queue.observe().ready == 0, "{:?}", queue.observe());
                advance(millis(1)).await;
            }
        });
    }
}
