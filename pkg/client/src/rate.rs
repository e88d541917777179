//! The client-side rate limiter of `--kube-api-qps` and `--kube-api-burst`: a token bucket that
//! grants tokens in the order of requests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket. It takes the time as an argument and returns how long to wait.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// The time to refill one token.
    period: Duration,
    /// The time to refill an empty bucket.
    depth: Duration,
    /// The time at which the bucket is full again if no more tokens are taken. Callers may reserve
    /// tokens beyond the current content.
    full_at: Option<Instant>,
}

impl TokenBucket {
    pub(crate) fn new(qps: f32, burst: u32) -> Self {
        let period = Duration::from_secs_f32(1.0 / qps);
        Self {
            period,
            depth: period.saturating_mul(burst.max(1)),
            full_at: None,
        }
    }

    /// Takes one token, possibly a future one, and returns the time until it is available.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.period;
        self.full_at = Some(full_at);
        full_at.saturating_duration_since(now).saturating_sub(self.depth)
    }

    /// Returns the token that was taken last. `full_at` is the bucket's after that token was taken.
    /// A token that is not the last one is lost, because otherwise two callers would get the same
    /// time slot.
    fn give_back(&mut self, full_at: Option<Instant>) {
        if self.full_at == full_at {
            self.full_at = full_at.and_then(|at| at.checked_sub(self.period));
        }
    }
}

/// A token that a caller waits for. Dropping it early returns it to the bucket.
pub(crate) struct PendingToken<'a> {
    bucket: &'a Mutex<TokenBucket>,
    /// The `full_at` of the bucket after this token was taken.
    full_at: Option<Instant>,
    is_used: bool,
}

impl<'a> PendingToken<'a> {
    /// Takes a token and returns it with the time to wait for it.
    pub(crate) fn take(bucket: &'a Mutex<TokenBucket>) -> (Self, Duration) {
        let mut locked = bucket.lock();
        let wait = locked.take(Instant::now());
        let token = Self {
            bucket,
            full_at: locked.full_at,
            is_used: false,
        };
        (token, wait)
    }

    /// Marks the token as used, so that dropping it does not return it.
    pub(crate) fn mark_used(mut self) {
        self.is_used = true;
    }
}

impl Drop for PendingToken<'_> {
    fn drop(&mut self) {
        if !self.is_used {
            self.bucket.lock().give_back(self.full_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_immediately_and_later_calls_at_the_rate() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(10.0, 3);
        let waits: Vec<_> = (0..5).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(bucket.take(now + Duration::from_secs(10)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_wait_returns_its_token() {
        let bucket = Mutex::new(TokenBucket::new(10.0, 1));
        PendingToken::take(&bucket).0.mark_used();
        for _ in 0..100 {
            assert_eq!(PendingToken::take(&bucket).1.as_millis(), 100);
        }
        let (first, _) = PendingToken::take(&bucket);
        let (second, wait) = PendingToken::take(&bucket);
        assert_eq!(wait.as_millis(), 200);
        // Two callers never share one slot.
        drop(first);
        assert_eq!(PendingToken::take(&bucket).1.as_millis(), 300);
        second.mark_used();
    }

    /// The monotonic clock starts with the machine, so the bucket's refill time may exceed the
    /// clock's age.
    #[test]
    fn burst_with_a_refill_time_of_years_passes_immediately() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(0.001, u32::MAX);
        assert_eq!(bucket.take(now), Duration::ZERO);
        assert_eq!(bucket.take(now), Duration::ZERO);
    }

    #[test]
    fn refilled_tokens_can_be_taken_together() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(10.0, 3);
        let later = now + Duration::from_millis(200);
        let waits = [now, now, now, later, later, later].map(|at| bucket.take(at).as_millis());
        assert_eq!(waits, [0, 0, 0, 0, 0, 100]);
    }
}
