//! Retries of requests, within limits, so that no command waits for ever.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use portreeve_client::{ApiErrorKind, retry_after};
use tokio::time::{Instant, sleep};

/// How long a request is repeated while the apiserver cannot be reached or is overloaded. A restart
/// of an apiserver takes less.
const OUTAGE_LIMIT: Duration = Duration::from_mins(5);
/// How often a request is sent that the apiserver answers with an error that may last. With the
/// waits below, it is repeated for 8 to 16 s.
const ATTEMPTS: u32 = 6;
const MIN_WAIT: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// How long to repeat a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Patience {
    /// A repetition cannot help.
    None,
    /// The error may be the object's, or that of an apiserver that is starting.
    Some,
    /// The apiserver is unavailable.
    Outage,
}

fn patience(error: &kube::Error) -> Patience {
    match (ApiErrorKind::of(error), error) {
        (ApiErrorKind::Transient, kube::Error::Api(status)) if status.code != 500 => Patience::Outage,
        // An internal error is also that of a webhook. An apiserver that has just started knows
        // neither the roles nor the definitions.
        (ApiErrorKind::Transient, kube::Error::Api(_)) | (ApiErrorKind::Forbidden | ApiErrorKind::NotFound, _) => {
            Patience::Some
        }
        (ApiErrorKind::Transient, _) => Patience::Outage,
        _ => Patience::None,
    }
}

/// Sends a request until it succeeds, or fails in a way that a repetition cannot resolve, or the
/// limits are reached. `is_final` ends the repetitions too.
pub(crate) async fn retry<T, F>(
    is_final: impl Fn(&kube::Error) -> bool,
    mut request: impl FnMut() -> F,
) -> kube::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let began = Instant::now();
    let mut waits = ExponentialBuilder::new()
        .with_min_delay(MIN_WAIT)
        .with_max_delay(MAX_WAIT)
        .with_jitter()
        .without_max_times()
        .build();
    let mut answered = 0;
    loop {
        let error = match request().await {
            Err(error) if !is_final(&error) => error,
            result => return result,
        };
        match patience(&error) {
            Patience::None => return Err(error),
            Patience::Some => answered += 1,
            Patience::Outage => {}
        }
        let wait = waits.next().unwrap_or(MAX_WAIT);
        let wait = wait.max(retry_after(&error).unwrap_or_default());
        if answered == ATTEMPTS || began.elapsed() + wait > OUTAGE_LIMIT {
            return Err(error);
        }
        sleep(wait).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kube::core::Status;

    use super::*;

    fn status(code: u16) -> kube::Error {
        kube::Error::Api(Status::failure("no", "").with_code(code).boxed())
    }

    /// Returns how many requests are sent, and for how many seconds, if all fail.
    async fn requests(error: fn() -> kube::Error) -> (u32, u64) {
        let (sent, began) = (Cell::new(0), Instant::now());
        let result: kube::Result<()> = retry(
            |_| false,
            || {
                sent.set(sent.get() + 1);
                async { Err(error()) }
            },
        )
        .await;
        assert!(result.is_err());
        (sent.get(), began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn every_request_ends() {
        assert_eq!(requests(|| status(422)).await.0, 1);
        let (sent, seconds) = requests(|| status(500)).await;
        assert!(sent == ATTEMPTS && seconds < 17, "{sent} requests in {seconds} s");
        let (sent, seconds) = requests(|| status(429)).await;
        assert!(
            sent > 20 && (280..=300).contains(&seconds),
            "{sent} requests in {seconds} s"
        );
        let (sent, _) = requests(|| kube::Error::Service("reset".into())).await;
        assert!(sent > 20, "{sent} requests");
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_says_when_to_come_back() {
        let began = Instant::now();
        let answered = Cell::new(false);
        let result = retry(
            |_| false,
            || {
                let first = !answered.replace(true);
                async move {
                    let details = serde_json::json!({"code": 429, "details": {"retryAfterSeconds": 30}});
                    let busy: Status = serde_json::from_value(details).unwrap();
                    if first {
                        Err(kube::Error::Api(busy.boxed()))
                    } else {
                        Ok(())
                    }
                }
            },
        );
        result.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 30);
    }
}
