//! The backoff after failures.

use std::time::Duration;

use backon::BackoffBuilder;

const MIN_WAIT: Duration = Duration::from_millis(100);
/// The longest wait before jitter. Jitter at most doubles a wait.
const MAX_WAIT: Duration = Duration::from_secs(15);

/// The largest random share that is added to a `Retry-After`.
const RETRY_AFTER_JITTER: f64 = 0.25;

/// An exponential backoff from 100 ms to 15 s, plus a random jitter of up to the same amount, so a
/// wait never exceeds 30 s.
///
/// client-go starts at 800 ms and ends at 60 s. The shorter waits recover sooner when a control
/// plane restarts.
pub(crate) struct Backoff(backon::ExponentialBackoff);

impl Backoff {
    pub(crate) fn new() -> Self {
        let builder = backon::ExponentialBuilder::new()
            .with_min_delay(MIN_WAIT)
            .with_max_delay(MAX_WAIT)
            .with_jitter()
            .without_max_times();
        Self(builder.build())
    }

    /// Returns the next wait. Waits grow with each call, up to the limit.
    pub(crate) fn wait(&mut self) -> Duration {
        self.0.next().unwrap_or(MAX_WAIT)
    }
}

/// Adds up to a quarter to the time that a `Retry-After` asks for: many clients may have received
/// the same response.
pub(crate) fn with_jitter(requested: Duration) -> Duration {
    requested.mul_f64(1.0 + RETRY_AFTER_JITTER * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_with_the_same_response_return_at_different_times() {
        let requested = Duration::from_secs(100);
        let waits: Vec<_> = (0..100).map(|_| with_jitter(requested)).collect();
        assert!(waits.iter().all(|wait| (requested..=requested * 5 / 4).contains(wait)));
        assert!(waits.iter().any(|wait| *wait != waits[0]));
        assert_eq!(with_jitter(Duration::ZERO), Duration::ZERO);
    }
}
