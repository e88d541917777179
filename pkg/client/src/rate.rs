//! The client-side rate limit of `--kube-api-qps` and `--kube-api-burst`: a token bucket that grants in order of asking.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket. Pure: the time is an argument, the answer is how long to wait.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// The time that one token takes to grow.
    period: Duration,
    /// The time that a full bucket takes to grow.
    depth: Duration,
    /// When the bucket will be full again, if nobody asks meanwhile. It may be asked for more than it holds.
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

    /// Takes one token, if need be one that has yet to grow, and says how long that takes.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        let full_at = self.full_at.map_or(now, |at| at.max(now)) + self.period;
        self.full_at = Some(full_at);
        full_at.saturating_duration_since(now).saturating_sub(self.depth)
    }

    /// Takes the token back that was taken last, unless somebody has come after it: then its moment passes, or two would have the next.
    fn give_back(&mut self, full_at: Option<Instant>) {
        if self.full_at == full_at {
            self.full_at = full_at.and_then(|at| at.checked_sub(self.period));
        }
    }
}

/// A token that is still awaited. Given up before its time, it goes back.
pub(crate) struct PendingToken<'a> {
    bucket: &'a Mutex<TokenBucket>,
    /// When the bucket would have been full again.
    full_at: Option<Instant>,
    is_used: bool,
}

impl<'a> PendingToken<'a> {
    /// Takes a token, and says how long to wait for it.
    pub(crate) fn take(bucket: &'a Mutex<TokenBucket>) -> (Self, Duration) {
        let mut taken = bucket.lock();
        let wait = taken.take(Instant::now());
        let awaited = Self {
            bucket,
            full_at: taken.full_at,
            is_used: false,
        };
        (awaited, wait)
    }

    /// Its time has come.
    pub(crate) fn used(mut self) {
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
    fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(10.0, 3);
        let waits: Vec<_> = (0..5).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(bucket.take(now + Duration::from_secs(10)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_leaves_the_token_to_the_next() {
        let bucket = Mutex::new(TokenBucket::new(10.0, 1));
        PendingToken::take(&bucket).0.used();
        for _ in 0..100 {
            assert_eq!(PendingToken::take(&bucket).1.as_millis(), 100);
        }
        let (first, _) = PendingToken::take(&bucket);
        let (second, wait) = PendingToken::take(&bucket);
        assert_eq!(wait.as_millis(), 200);
        // Nobody has two in the moment of one.
        drop(first);
        assert_eq!(PendingToken::take(&bucket).1.as_millis(), 300);
        second.used();
    }

    /// The clock may be younger than the bucket is deep: it starts with the machine.
    #[test]
    fn a_burst_that_takes_years_to_grow_passes_at_once() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(0.001, u32::MAX);
        assert_eq!(bucket.take(now), Duration::ZERO);
        assert_eq!(bucket.take(now), Duration::ZERO);
    }

    #[test]
    fn tokens_that_have_grown_may_be_taken_together() {
        let now = Instant::now();
        let mut bucket = TokenBucket::new(10.0, 3);
        let later = now + Duration::from_millis(200);
        let waits = [now, now, now, later, later, later].map(|at| bucket.take(at).as_millis());
        assert_eq!(waits, [0, 0, 0, 0, 0, 100]);
    }
}
