//! The client-side rate limiter of `--kube-api-qps` and `--kube-api-burst`: governor's token bucket
//! on tokio's clock, with a queue for the callers that wait.
//!
//! Tokio's timers tick in milliseconds, so a caller may receive its token up to 1 ms late. With a
//! burst of one that time is lost, and the rate stays below the limit: by a tenth at 100 requests
//! per second. A larger burst makes up for it.

use std::{num::NonZeroU32, time::Duration};

use governor::{
    Quota,
    clock::Clock,
    state::{InMemoryState, NotKeyed},
};
use tokio::{sync::Semaphore, time::Instant};

/// The largest burst. Governor multiplies the burst by the time to refill one token, in
/// nanoseconds; at the lowest rate, a larger burst would overflow its counter.
const MAX_BURST: u32 = 1_000_000;

/// A token bucket that grants tokens in the order of requests.
pub(crate) struct RateLimiter {
    bucket: governor::RateLimiter<NotKeyed, InMemoryState, TokioClock>,
    /// A single permit, which the next caller holds; the others queue in the order of their calls.
    /// A caller that is dropped while it waits has taken no token.
    turn: Semaphore,
}

impl RateLimiter {
    /// Returns a full bucket, or `None` for a rate of 0, which means no limit.
    pub(crate) fn new(qps: f32, burst: u32) -> Option<Self> {
        let period = Duration::try_from_secs_f64(1.0 / f64::from(qps)).ok()?;
        let burst = NonZeroU32::new(burst.min(MAX_BURST)).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(period)?.allow_burst(burst);
        Some(Self {
            bucket: governor::RateLimiter::direct_with_clock(quota, TokioClock),
            turn: Semaphore::new(1),
        })
    }

    /// Waits until a token is available, and takes it.
    pub(crate) async fn acquire(&self) {
        let _turn = self.turn.acquire().await;
        while let Err(not_until) = self.bucket.check() {
            tokio::time::sleep_until(not_until.earliest_possible().into()).await;
        }
    }
}

/// Tokio's clock, which tests can pause, unlike the clocks of governor.
struct TokioClock;

impl Clock for TokioClock {
    type Instant = std::time::Instant;

    fn now(&self) -> Self::Instant {
        Instant::now().into_std()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acquires `tokens` tokens one after the other and returns the times of the grants in
    /// milliseconds.
    async fn grants(limiter: &RateLimiter, tokens: usize) -> Vec<u128> {
        let started = Instant::now();
        let mut times = Vec::new();
        for _ in 0..tokens {
            limiter.acquire().await;
            times.push(started.elapsed().as_millis());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn refilled_tokens_can_be_taken_together() {
        let limiter = RateLimiter::new(10.0, 3).unwrap();
        assert_eq!(grants(&limiter, 3).await, [0, 0, 0]);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(grants(&limiter, 3).await, [0, 0, 100]);
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(grants(&limiter, 4).await, [0, 0, 0, 100]);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_calls_are_granted_in_their_order() {
        let limiter = RateLimiter::new(10.0, 1).unwrap();
        let order = parking_lot::Mutex::new(Vec::new());
        let started = Instant::now();
        let calls = (0..20).map(|number| {
            let (limiter, order) = (&limiter, &order);
            async move {
                limiter.acquire().await;
                order.lock().push((number, started.elapsed().as_millis()));
            }
        });
        futures::future::join_all(calls).await;
        let expected: Vec<_> = (0..20).map(|number| (number, number * 100)).collect();
        assert_eq!(order.into_inner(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_wait_takes_no_token() {
        let limiter = RateLimiter::new(10.0, 1).unwrap();
        limiter.acquire().await;
        let started = Instant::now();
        for _ in 0..10 {
            let cancelled = tokio::time::timeout(Duration::from_millis(1), limiter.acquire()).await;
            assert!(cancelled.is_err());
        }
        limiter.acquire().await;
        assert_eq!(started.elapsed().as_millis(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_wait_gives_its_place_to_the_next_call() {
        let limiter = RateLimiter::new(10.0, 1).unwrap();
        limiter.acquire().await;
        let started = Instant::now();
        let first = tokio::time::timeout(Duration::from_millis(50), limiter.acquire());
        let (first, ()) = tokio::join!(biased; first, limiter.acquire());
        assert!(first.is_err());
        assert_eq!(started.elapsed().as_millis(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn largest_burst_at_the_lowest_rate_passes_immediately() {
        let limiter = RateLimiter::new(0.001, u32::MAX).unwrap();
        assert_eq!(grants(&limiter, 1000).await, [0; 1000]);
    }

    #[test]
    fn rate_of_zero_is_no_limit() {
        assert!(RateLimiter::new(0.0, 30).is_none());
    }
}
