//! Polling for a condition that another process fulfils.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

/// The time limit of any wait. It is far longer than what is waited for takes, also on a busy
/// machine and after the longest backoff, since it delays only the report of a failure.
pub const LIMIT: Duration = Duration::from_mins(5);
/// The shortest interval between polls: short compared to the usual waits, and long enough that
/// polls use little CPU time on a busy machine.
const INTERVAL: Duration = Duration::from_millis(25);
/// The longest interval between polls.
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

/// The result of one poll.
///
/// `None` and `Err` mean that the condition does not hold yet. An error describes the state that
/// was found instead; the failure of [`eventually`] includes the last one.
pub trait PollResult {
    /// The value once the condition holds.
    type Found;

    /// Returns the value, or a description of the state that was found instead.
    ///
    /// # Errors
    /// Returns an error if the condition does not hold yet.
    fn into_result(self) -> Result<Self::Found, String>;
}

impl<T> PollResult for Option<T> {
    type Found = T;

    fn into_result(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing yet".to_owned())
    }
}

impl<T, E: Display> PollResult for Result<T, E> {
    type Found = T;

    fn into_result(self) -> Result<T, String> {
        // The alternate form prints the whole chain of an `anyhow::Error`.
        self.map_err(|error| format!("{error:#}"))
    }
}

/// Returns how long to wait before the next poll of a wait that has begun then: the longer the
/// wait, the fewer polls, so that concurrent waits do not keep the servers busy.
pub(crate) fn poll_interval(began: Instant) -> Duration {
    (began.elapsed() / 10).clamp(INTERVAL, LONGEST_INTERVAL)
}

/// Polls until the condition holds, and returns its value. `what` completes the message "timed out
/// waiting for".
///
/// Use a watch instead where the server offers one: it is faster and sees every intermediate state.
///
/// # Errors
/// Returns an error if the condition does not hold within `limit`. The error names the condition
/// and the last state.
pub async fn eventually<O, F>(limit: Duration, what: &str, mut poll: impl FnMut() -> F) -> Result<O::Found>
where
    O: PollResult,
    F: Future<Output = O>,
{
    let began = Instant::now();
    let deadline = began + limit;
    let mut seen = "no answer yet".to_owned();
    // The deadline also ends a poll that hangs.
    while let Ok(observation) = timeout_at(deadline, poll()).await {
        match observation.into_result() {
            Ok(found) => return Ok(found),
            Err(state) => seen = state,
        }
        let interval = poll_interval(began);
        if Instant::now() + interval > deadline {
            break;
        }
        sleep(interval).await;
    }
    bail!("timed out after {limit:?} waiting for {what}; last seen: {seen}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_names_the_condition_and_the_last_state() {
        let mut replicas = 0;
        let failed = eventually(Duration::from_secs(1), "3 replicas", || {
            replicas = 2.min(replicas + 1);
            let seen = format!("{replicas} replicas");
            async move { Err::<(), _>(seen) }
        });
        let error = failed.await.map_err(|error| error.to_string());
        assert_eq!(
            error,
            Err("timed out after 1s waiting for 3 replicas; last seen: 2 replicas".to_owned())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_ends_a_poll_that_hangs() {
        let failed = eventually(Duration::from_secs(1), "an answer", std::future::pending::<Option<()>>);
        let error = failed.await.map_err(|error| error.to_string());
        assert_eq!(
            error,
            Err("timed out after 1s waiting for an answer; last seen: no answer yet".to_owned())
        );
    }
}
