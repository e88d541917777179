//! The delay before a failed key is retried.
//!
//! Architecture Invariant: pure. The delay depends only on the number of failures, without jitter.
//! The failures are counted where the key is stored, so that no counter outlives its key.

use std::time::Duration;

/// Exponential backoff: `base`, doubled by each failure, up to `max`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// The delay after the first failure.
    pub(crate) base: Duration,
    /// The maximum delay.
    pub(crate) max: Duration,
}

impl Backoff {
    /// 5 ms, as in `DefaultControllerRateLimiter` of client-go's `util/workqueue`, up to 30 s
    /// instead of 1000 s. No event reports that an apiserver or a permission is back, and waiting a
    /// quarter of an hour would be too long.
    ///
    /// The second half of client-go's limiter is left out. It is a bucket of 10 retries per second
    /// for the whole queue. After an outage, it would make 1,000 failed keys wait for a minute and
    /// a half. The number of workers and API Priority and Fairness in the apiserver already limit
    /// the load.
    pub(crate) const DEFAULT: Self = Self {
        base: Duration::from_millis(5),
        max: Duration::from_secs(30),
    };

    /// Returns the delay after a failure of a key with `failures` previous failures.
    pub(crate) fn delay(self, failures: u32) -> Duration {
        let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_from_the_base() {
        let delays: Vec<u128> = (0..6).map(|n| Backoff::DEFAULT.delay(n).as_millis()).collect();
        assert_eq!(delays, [5, 10, 20, 40, 80, 160]);
    }

    #[test]
    fn delays_stop_at_the_maximum() {
        assert_eq!(Backoff::DEFAULT.delay(12), Duration::from_millis(20_480));
        for failures in [13, 31, 32, 33, 64, u32::MAX] {
            assert_eq!(Backoff::DEFAULT.delay(failures), Duration::from_secs(30), "{failures}");
        }
    }

    #[test]
    fn huge_delays_saturate() {
        let backoff = Backoff {
            base: Duration::MAX,
            max: Duration::MAX,
        };
        assert_eq!(backoff.delay(u32::MAX), Duration::MAX);
    }
}
