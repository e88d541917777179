//! Waits within an attempt while the apiserver throttles a request.

use std::time::Duration;

use tokio::time::sleep;

/// How often a request is sent. An attempt needs all its lists, so a throttled one must not end it.
const TRIES: u32 = 10;
/// The longest `Retry-After` that is waited for.
const MAX_DELAY: Duration = Duration::from_secs(5);
const MIN_DELAY: Duration = Duration::from_millis(100);

/// The throttled tries of one request.
#[derive(Default)]
pub(super) struct Throttling {
    tries: u32,
}

impl Throttling {
    /// Waits until the request may be repeated. Returns false at once if it may not: because it was
    /// not throttled, which is `None`, too often, or for too long.
    pub(super) async fn waits(&mut self, delay: Option<Duration>) -> bool {
        self.tries += 1;
        let delay = delay.filter(|delay| *delay <= MAX_DELAY && self.tries < TRIES);
        if let Some(delay) = delay {
            sleep(delay.max(MIN_DELAY)).await;
        }
        delay.is_some()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_is_repeated_while_it_is_throttled_but_not_for_ever() {
        let began = Instant::now();
        let mut throttling = Throttling::default();
        assert!(!throttling.waits(None).await);
        assert!(!throttling.waits(Some(Duration::from_secs(6))).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
        let mut throttling = Throttling::default();
        for _ in 1..TRIES {
            assert!(throttling.waits(Some(Duration::from_secs(1))).await);
        }
        assert!(!throttling.waits(Some(Duration::from_secs(1))).await);
        assert_eq!(began.elapsed(), Duration::from_secs(9));
        assert!(Throttling::default().waits(Some(Duration::ZERO)).await);
        assert_eq!(began.elapsed(), Duration::from_secs(9) + MIN_DELAY);
    }
}
