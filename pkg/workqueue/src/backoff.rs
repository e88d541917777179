//! The delay before a failed key is retried.
//!
//! Architecture Invariant: pure. The delay depends only on the number of failures and on a random
//! number, which is an argument. The failures are counted where the key is stored, so that no
//! counter outlives its key.

use std::time::Duration;

/// The largest random share of a delay that is left out, so that keys that failed together are not
/// retried together. The maximum delay is therefore never exceeded.
const JITTER: f64 = 0.5;

/// The largest random share that is added to a `Retry-After`, which many requests receive at once.
const RETRY_AFTER_JITTER: f64 = 0.25;

/// Exponential backoff: `base`, doubled by each failure, up to `max`, with jitter.
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
    pub(crate) const DEFAULT: Self = Self {
        base: Duration::from_millis(5),
        max: Duration::from_secs(30),
    };

    /// Returns the delay after a failure of a key with `failures` previous failures, but at least
    /// `least`. `jitter` is a random number from 0 to 1.
    pub(crate) fn delay(self, failures: u32, least: Duration, jitter: f64) -> Duration {
        let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
        let delay = self.base.saturating_mul(factor).min(self.max);
        let delay = delay.mul_f64(1.0 - JITTER * jitter);
        delay.max(least.mul_f64(1.0 + RETRY_AFTER_JITTER * jitter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay(failures: u32, jitter: f64) -> Duration {
        Backoff::DEFAULT.delay(failures, Duration::ZERO, jitter)
    }

    #[test]
    fn delays_double_from_the_base() {
        let delays: Vec<u128> = (0..6).map(|n| delay(n, 0.0).as_millis()).collect();
        assert_eq!(delays, [5, 10, 20, 40, 80, 160]);
    }

    #[test]
    fn delays_stop_at_the_maximum() {
        assert_eq!(delay(12, 0.0), Duration::from_millis(20_480));
        for failures in [13, 31, 32, 33, 64, u32::MAX] {
            assert_eq!(delay(failures, 0.0), Duration::from_secs(30), "{failures}");
        }
    }

    #[test]
    fn jitter_shortens_a_delay_by_up_to_a_half() {
        assert_eq!(delay(2, 0.5), Duration::from_millis(15));
        assert_eq!(delay(u32::MAX, 1.0), Duration::from_secs(15));
    }

    #[test]
    fn jitter_extends_a_retry_after() {
        let delay = |jitter| Backoff::DEFAULT.delay(0, Duration::from_secs(2), jitter).as_millis();
        assert_eq!([0.0, 0.5, 1.0].map(delay), [2000, 2250, 2500]);
    }
}
