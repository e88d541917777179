//! The outcome of a run, which decides when its key runs again.

use std::time::Duration;

use tokio::time::Instant;

/// The outcome of a run.
///
/// `Retry`, `RetryAfter` and `RetryUnavailable` keep the key in the lane in which it ran. After
/// `At`, the key becomes urgent when its time comes.
///
/// A key that was added while it ran is ready again at once, whatever the outcome, because the run
/// may have missed that change. Its failures still count, so the backoff continues if the next run
/// fails too. The delay of the failed run is skipped, because the next run decides again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// Success. The key is not run again until it is added. Resets the failures.
    Forget,
    /// Failure. The key is retried after the backoff: 5 ms, doubled by each consecutive failure, at
    /// most 30 s, less a random part of up to a half. The retry needs a token of the
    /// [`RetryBudget`](crate::RetryBudget).
    Retry,
    /// Failure. The key is retried after the backoff, but not before this delay, such as a
    /// `Retry-After`. It counts as a failure like `Retry`.
    RetryAfter(Duration),
    /// Failure because the apiserver is unavailable. The key is retried after the backoff, but not
    /// before this delay, unless [`Queue::end_outage`](crate::Queue::end_outage) ends the wait. If
    /// that was called during the run, the backoff is that of a first failure. It counts as a
    /// failure like `Retry`.
    RetryUnavailable(Duration),
    /// Success. The key runs again at this time, in the urgent lane. Resets the failures.
    At(Instant),
}

/// The constraints on the retry of a failed run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// The minimum delay.
    pub(super) least: Duration,
    /// Whether the end of an outage ends the wait.
    pub(super) is_unavailable: bool,
}

impl Outcome {
    pub(super) fn failure(self) -> Option<Failure> {
        let (least, is_unavailable) = match self {
            Self::Retry => (Duration::ZERO, false),
            Self::RetryAfter(least) => (least, false),
            Self::RetryUnavailable(least) => (least, true),
            Self::Forget | Self::At(_) => return None,
        };
        Some(Failure { least, is_unavailable })
    }
}
