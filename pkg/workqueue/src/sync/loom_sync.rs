//! A lock and a clock that loom can explore. The clock only advances when a test advances it.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{OnceLock, PoisonError},
    task::{Poll, Waker},
    time::Duration,
};

use loom::sync::{Mutex as Lock, MutexGuard};
use tokio::time::Instant;

/// Loom's lock with the API of `parking_lot`'s.
#[derive(Debug)]
pub(crate) struct Mutex<T>(Lock<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time elapsed since the first reading, and the wakers of sleeping tasks.
#[derive(Default)]
struct Clock {
    elapsed: Duration,
    sleepers: Vec<Waker>,
}

loom::lazy_static! {
    static ref CLOCK: Mutex<Clock> = Mutex::new(Clock::default());
}

/// Returns the time at which every interleaving starts.
fn zero() -> Instant {
    static ZERO: OnceLock<Instant> = OnceLock::new();
    *ZERO.get_or_init(Instant::now)
}

pub(crate) fn now() -> Instant {
    zero() + CLOCK.lock().elapsed
}

/// Returns no jitter, so that every exploration is the same.
pub(crate) fn jitter() -> f64 {
    0.0
}

/// Advances the clock and wakes all sleepers.
pub(crate) fn advance(time: Duration) {
    let sleepers = {
        let mut clock = CLOCK.lock();
        clock.elapsed += time;
        std::mem::take(&mut clock.sleepers)
    };
    sleepers.into_iter().for_each(Waker::wake);
}

/// Returns the output of `future`, or `None` if `until` comes first.
pub(crate) async fn timeout_at<F: Future>(until: Instant, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        let mut clock = CLOCK.lock();
        if zero() + clock.elapsed >= until {
            return Poll::Ready(None);
        }
        clock.sleepers.push(context.waker().clone());
        Poll::Pending
    })
    .await
}
