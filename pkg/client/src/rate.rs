//! The client-side rate limit of `--kube-api-qps` and `--kube-api-burst`: a token bucket that grants in order of asking.

use std::time::Duration;

use tokio::time::Instant;

/// A token bucket. Pure: the time is an argument, the answer is how long to wait.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// The time that one token takes to grow.
    period: Duration,
    /// How many tokens fit.
    burst: u32,
    /// When the bucket was, or will be, empty: tokens have been growing since then.
    empty_at: Option<Instant>,
}

impl Bucket {
    pub(crate) fn new(qps: f32, burst: u32) -> Self {
        Self {
            period: Duration::from_secs_f32(1.0 / qps),
            burst: burst.max(1),
            empty_at: None,
        }
    }

    /// Takes one token, if need be one that has yet to grow, and says how long that takes.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        let full_since = now.checked_sub(self.period * self.burst).unwrap_or(now);
        let empty_at = self.empty_at.map_or(full_since, |at| at.max(full_since)) + self.period;
        self.empty_at = Some(empty_at);
        empty_at.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let now = Instant::now() + Duration::from_hours(1);
        let mut bucket = Bucket::new(10.0, 3);
        let waits: Vec<_> = (0..5).map(|_| bucket.take(now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        assert_eq!(bucket.take(now + Duration::from_secs(10)), Duration::ZERO);
    }
}
