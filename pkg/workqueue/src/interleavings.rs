//! Tests the queue under loom, which explores every interleaving of a few threads up to a number of
//! preemptions. A lost wake-up is a deadlock, which loom detects.
//!
//! `make loom` runs these tests. The core, the queue and its metrics are the production code. The
//! lock, `Notify` and the clock are the models in `sync`.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use loom::{
    future::block_on,
    model::Builder,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};
use portreeve_metrics::Registry;

use crate::{Lane, Metrics, Outcome, Queue, RetryBudget, sync};

/// How often a thread that could continue may be preempted, unless `LOOM_MAX_PREEMPTIONS` overrides
/// it.
const PREEMPTIONS: usize = 2;

fn check(interleaving: impl Fn(Queue<u8>) + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(PREEMPTIONS);
    builder.check(move || {
        let metrics = Metrics::register(&Registry::new()).unwrap();
        interleaving(Queue::new("test", &metrics));
    });
}

/// Runs the closure on a separate thread.
fn spawn<T: 'static>(queue: &Queue<u8>, run: impl FnOnce(&Queue<u8>) -> T + 'static) -> thread::JoinHandle<T> {
    let queue = queue.clone();
    thread::spawn(move || run(&queue))
}

/// Takes one key and finishes it.
fn take_and_finish(queue: &Queue<u8>) -> Option<u8> {
    let work = block_on(queue.take())?;
    let key = *work.key();
    work.finish(Outcome::Forget);
    Some(key)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn an_add_reaches_a_taker() {
    check(|queue| {
        let adding = spawn(&queue, |queue| queue.add(1, Lane::Urgent));
        assert_eq!(take_and_finish(&queue), Some(1));
        adding.join().unwrap();
    });
}

#[test]
fn two_adds_reach_two_takers() {
    check(|queue| {
        let taking = spawn(&queue, take_and_finish);
        let adding = spawn(&queue, |queue| {
            queue.add(1, Lane::Urgent);
            queue.add(2, Lane::Routine);
        });
        let keys = [take_and_finish(&queue), taking.join().unwrap()];
        assert!([[Some(1), Some(2)], [Some(2), Some(1)]].contains(&keys), "{keys:?}");
        adding.join().unwrap();
    });
}

/// A taker is polled once and dropped, woken or not, while another taker waits.
#[test]
fn a_cancelled_taker_does_not_keep_a_key_from_another_taker() {
    check(|queue| {
        let cancelled = spawn(&queue, |queue| {
            let mut take = pin!(queue.take());
            match take.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                // The taker got the key before its cancellation, so it makes the key ready again
                // for the other taker.
                Poll::Ready(Some(work)) => work.finish(Outcome::At(sync::now())),
                Poll::Ready(None) | Poll::Pending => {}
            }
        });
        let adding = spawn(&queue, |queue| queue.add(1, Lane::Urgent));
        assert_eq!(take_and_finish(&queue), Some(1));
        cancelled.join().unwrap();
        adding.join().unwrap();
    });
}

#[test]
fn a_close_ends_every_taker() {
    check(|queue| {
        let taking = spawn(&queue, take_and_finish);
        let closing = spawn(&queue, Queue::close);
        assert_eq!([take_and_finish(&queue), taking.join().unwrap()], [None; 2]);
        closing.join().unwrap();
    });
}

#[test]
fn a_close_concurrent_with_an_add_ends_the_taker() {
    check(|queue| {
        let closing = spawn(&queue, Queue::close);
        let adding = spawn(&queue, |queue| queue.add(1, Lane::Urgent));
        while take_and_finish(&queue).is_some() {}
        closing.join().unwrap();
        adding.join().unwrap();
        assert_eq!(queue.observe(), crate::QueueSnapshot::default());
    });
}

/// A run that starts after the add sees the change made before it, and no two runs of the key
/// overlap.
#[test]
fn a_key_added_while_running_runs_again_with_one_holder() {
    check(|queue| {
        let version = Arc::new(AtomicUsize::new(1));
        let held = Arc::new(AtomicBool::new(false));
        queue.add(1, Lane::Urgent);
        let work = {
            let (version, held) = (Arc::clone(&version), Arc::clone(&held));
            move |queue: &Queue<u8>| {
                while let Some(work) = block_on(queue.take()) {
                    assert!(!held.swap(true, Ordering::SeqCst), "the key has two holders");
                    let is_latest = version.load(Ordering::SeqCst) == 2;
                    held.store(false, Ordering::SeqCst);
                    work.finish(Outcome::Forget);
                    if is_latest {
                        queue.close();
                    }
                }
            }
        };
        let working = spawn(&queue, work.clone());
        let changing = spawn(&queue, move |queue| {
            version.store(2, Ordering::SeqCst);
            queue.add(1, Lane::Urgent);
        });
        work(&queue);
        working.join().unwrap();
        changing.join().unwrap();
    });
}

#[test]
fn the_end_of_the_last_run_wakes_drained() {
    check(|queue| {
        queue.add(1, Lane::Urgent);
        queue.add(2, Lane::Urgent);
        let [first, second] = [(); 2].map(|()| block_on(queue.take()).unwrap());
        let ending = [first, second].map(|work| thread::spawn(move || work.finish(Outcome::Retry)));
        queue.close();
        block_on(queue.drained());
        assert_eq!(queue.observe(), crate::QueueSnapshot::default());
        for ending in ending {
            ending.join().unwrap();
        }
    });
}

#[test]
fn a_taker_sleeping_until_a_later_time_wakes_for_an_earlier_one() {
    check(|queue| {
        queue.add_at(9, sync::now() + millis(100), Lane::Urgent);
        let taking = spawn(&queue, take_and_finish);
        queue.add_at(1, sync::now() + millis(10), Lane::Urgent);
        sync::advance(millis(10));
        assert_eq!(taking.join().unwrap(), Some(1));
    });
}

#[test]
fn sleeping_takers_do_not_rely_on_each_others_timers() {
    check(|queue| {
        let taking = spawn(&queue, take_and_finish);
        let advancing = spawn(&queue, |queue| {
            queue.add_at(1, sync::now() + millis(10), Lane::Urgent);
            queue.add(2, Lane::Urgent);
            sync::advance(millis(10));
        });
        let keys = [take_and_finish(&queue), taking.join().unwrap()];
        assert!([[Some(1), Some(2)], [Some(2), Some(1)]].contains(&keys), "{keys:?}");
        advancing.join().unwrap();
    });
}

#[test]
fn reschedule_now_wakes_a_sleeping_taker() {
    check(|queue| {
        queue.add_at(1, sync::now() + millis(100), Lane::Routine);
        let rescheduling = spawn(&queue, Queue::reschedule_now);
        assert_eq!(take_and_finish(&queue), Some(1));
        rescheduling.join().unwrap();
    });
}

#[test]
fn the_end_of_an_outage_wakes_a_sleeping_taker() {
    check(|queue| {
        queue.add(1, Lane::Urgent);
        block_on(queue.take())
            .unwrap()
            .finish(Outcome::RetryUnavailable(millis(100)));
        let ending = spawn(&queue, |queue| queue.end_outage(|| millis(0)));
        assert_eq!(take_and_finish(&queue), Some(1));
        ending.join().unwrap();
    });
}

/// Two keys fail, and there is a token for one retry. Its success releases the other retry, for
/// which another taker may already sleep.
#[test]
fn the_success_of_a_retry_wakes_a_taker_for_another_one() {
    check(|_| {
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let queue = Queue::with_retry_budget("test", &metrics, RetryBudget::new(0.001, 1), |_| 0);
        for key in [1, 2] {
            queue.add(key, Lane::Urgent);
            block_on(queue.take()).unwrap().finish(Outcome::Retry);
        }
        sync::advance(millis(5));
        let taking = spawn(&queue, take_and_finish);
        let keys = [take_and_finish(&queue), taking.join().unwrap()];
        assert!([[Some(1), Some(2)], [Some(2), Some(1)]].contains(&keys), "{keys:?}");
    });
}
