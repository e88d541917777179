//! How long a key that failed has to wait.
//!
//! Architecture Invariant: a function of the number of failures; no clock, no jitter, no memory of keys. The failures
//! themselves are counted where the key is kept, so that no counter can outlive its key.

use std::time::Duration;

/// Exponential backoff: `base`, twice that, four times that, and never more than `max`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// The delay after the first failure.
    pub(crate) base: Duration,
    /// The delay that is never exceeded.
    pub(crate) max: Duration,
}

impl Backoff {
    /// 5 ms, the figure of `DefaultControllerRateLimiter` in client-go's `util/workqueue`, to 30 s instead of its 1000: nothing tells a
    /// key that an apiserver is back, or a right, and a quarter of an hour later is too late.
    ///
    /// Its second half, a bucket of 10 retries a second for the whole queue, is left out: it makes a thousand keys that
    /// failed on one outage wait for a minute and a half after the outage is over. The number of workers limits what
    /// reaches the apiserver, and so do its own priority and fairness.
    pub(crate) const DEFAULT: Self = Self {
        base: Duration::from_millis(5),
        max: Duration::from_secs(30),
    };

    /// The delay of a key that had failed `failures` times before it failed now.
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
    fn huge_figures_saturate() {
        let backoff = Backoff {
            base: Duration::MAX,
            max: Duration::MAX,
        };
        assert_eq!(backoff.delay(u32::MAX), Duration::MAX);
    }
}
