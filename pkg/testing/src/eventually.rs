//! Waiting for a condition that another process brings about.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

/// How soon the condition is looked at again at the soonest: short against what is waited for, long against the cost of a look at two
/// busy cores.
const INTERVAL: Duration = Duration::from_millis(25);
/// And at the latest.
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);

/// What one look at a condition found. An `Option` is the condition or nothing; the error of a `Result` also says what was
/// seen instead, and the last of them ends up in the failure.
pub trait PollResult {
    /// What is found once the condition holds.
    type Found;

    /// The condition's value, or what was seen instead of it.
    ///
    /// # Errors
    /// When the condition does not hold yet.
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

/// Looks again and again until the condition holds, and returns what was found. `what` completes "timed out waiting for".
///
/// Not for what a server can tell by itself: a watch is faster and sees every state in between.
///
/// # Errors
/// When the condition does not hold within `limit`: the error says what was waited for, and what was seen last.
pub async fn eventually<O, F>(limit: Duration, what: &str, mut look: impl FnMut() -> F) -> Result<O::Found>
where
    O: PollResult,
    F: Future<Output = O>,
{
    let began = Instant::now();
    let deadline = began + limit;
    let mut seen = "no answer yet".to_owned();
    // A look that hangs is ended by the deadline too.
    while let Ok(observation) = timeout_at(deadline, look()).await {
        match observation.into_result() {
            Ok(found) => return Ok(found),
            Err(state) => seen = state,
        }
        // What has taken long may take a little longer: looks that wait together must not be what keeps the servers busy.
        let interval = (began.elapsed() / 10).clamp(INTERVAL, LONGEST_INTERVAL);
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
    async fn returns_what_was_found_once_it_is_there() {
        let mut looks = 0;
        let found = eventually(Duration::from_secs(1), "the third look", || {
            looks += 1;
            let looks = looks;
            async move { (looks == 3).then_some(looks) }
        });
        assert_eq!(found.await.ok(), Some(3));
    }

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
    async fn a_look_that_hangs_is_ended() {
        let failed = eventually(Duration::from_secs(1), "an answer", std::future::pending::<Option<()>>);
        let error = failed.await.map_err(|error| error.to_string());
        assert_eq!(
            error,
            Err("timed out after 1s waiting for an answer; last seen: no answer yet".to_owned())
        );
    }
}
