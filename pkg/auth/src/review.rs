//! Sends one review to the apiserver, with the retries of Kubernetes' webhook authorizers.

use std::{
    error::Error,
    io::{self, ErrorKind},
    iter::successors,
    time::Duration,
};

use backon::{BackoffBuilder, ExponentialBuilder};
use kube::{Api, Client, Resource, api::PostParams};
use portreeve_client::{error_chain, retry_after};
use tokio::time::{Instant, sleep, timeout_at};

use crate::metrics::StepMetrics;

/// The time limit of a review, with its retries.
const LIMIT: Duration = Duration::from_secs(10);
/// How often a review is sent at most.
const ATTEMPTS: usize = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const PAUSE_FACTOR: f32 = 1.5;
const JITTER: f32 = 0.2;

/// The label of a request that got no response.
const NO_RESPONSE: &str = "<error>";

/// A review that the apiserver did not answer. Cheap to clone, so that requests can share it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("failed to review {subject}: {problem}")]
pub(crate) struct ReviewError {
    pub(crate) subject: &'static str,
    /// The chain of the cause, as text because causes cannot be cloned.
    pub(crate) problem: String,
}

/// Clients for reviews, each with a rate limit of its own: whoever guesses tokens, or asks without
/// credentials, delays nobody else.
pub(crate) struct ReviewClients {
    /// For whoever has shown valid credentials.
    pub(crate) known: Client,
    /// For everybody else.
    pub(crate) unknown: Client,
}

/// Sends `review` and returns the apiserver's answer. Repeats it after a 429, 500 or 504, a
/// `Retry-After` and a connection that broke.
///
/// # Errors
///
/// Returns the last failure, within 10 s.
pub(crate) async fn send<K>(
    client: &Client,
    review: &K,
    subject: &'static str,
    metrics: &StepMetrics,
) -> Result<K, ReviewError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let deadline = Instant::now() + LIMIT;
    let mut pauses = ExponentialBuilder::new()
        .with_min_delay(FIRST_PAUSE)
        .with_factor(PAUSE_FACTOR)
        .with_max_times(ATTEMPTS - 1)
        .build();
    let failed = |problem: String| ReviewError { subject, problem };
    loop {
        let started = Instant::now();
        let answer = timeout_at(deadline, api.create(&PostParams::default(), review)).await;
        let Ok(answer) = answer else {
            metrics.observe(NO_RESPONSE, started.elapsed());
            return Err(failed(format!("no answer within {LIMIT:?}")));
        };
        metrics.observe(&code(&answer), started.elapsed());
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let Some(pause) = pauses.next().filter(|_| may_repeat(&error)) else {
            return Err(failed(error_chain(&error)));
        };
        let pause = pause.mul_f32(1.0 + JITTER * fastrand::f32());
        let pause = pause.max(retry_after(&error).unwrap_or_default());
        if Instant::now() + pause >= deadline {
            return Err(failed(error_chain(&error)));
        }
        sleep(pause).await;
    }
}

fn code<K>(answer: &Result<K, kube::Error>) -> String {
    match answer {
        Ok(_) => "201".to_owned(),
        Err(kube::Error::Api(status)) => status.code.to_string(),
        Err(_) => NO_RESPONSE.to_owned(),
    }
}

/// Returns whether the same review may succeed soon.
fn may_repeat(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 429 | 500 | 504) || retry_after(error).is_some(),
        error => is_reset(error),
    }
}

/// Returns whether an established connection broke.
fn is_reset(error: &(dyn Error + 'static)) -> bool {
    let mut causes = successors(Some(error), |&error| error.source());
    causes.any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        let hyper = cause.downcast_ref::<hyper::Error>();
        io.is_some_and(|io| matches!(io.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
            || hyper.is_some_and(hyper::Error::is_incomplete_message)
    })
}

#[cfg(test)]
mod tests;
