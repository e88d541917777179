//! `GET /settled`: whether the controllers have anything left to do.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Query, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use portreeve_client::parse_duration;
use portreeve_manager::{Outstanding, Settling};
use portreeve_reconcile::Shutdown;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
/// The listener answers every request within a minute.
const MAX_TIMEOUT: Duration = Duration::from_secs(50);
/// The number of requests that may wait at once.
const CALLERS: usize = 32;
/// The number of items of each list in a response.
const ITEMS: usize = 100;

#[derive(Clone)]
struct Context {
    settling: Settling,
    callers: Arc<Semaphore>,
    stop: Shutdown,
}

/// The parameters of a request.
#[derive(Debug, Eq, PartialEq)]
struct Parameters {
    timeout: Duration,
    /// Whether to list what waits although nothing is left to do.
    is_verbose: bool,
}

/// A parameter that is not valid.
#[derive(Debug, thiserror::Error)]
enum InvalidParameter {
    #[error("invalid timeout {0:?}: give a duration from 1ms to 50s, such as timeout=10s")]
    Timeout(String),
    #[error("invalid verbose {0:?}: leave out the value")]
    Verbose(String),
    #[error("unknown parameter {0:?}: there are timeout and verbose")]
    Unknown(String),
}

/// Returns the route. Requests end when `stop` is requested.
pub(super) fn route(settling: Settling, stop: &Shutdown) -> Router {
    let context = Context {
        settling,
        callers: Arc::new(Semaphore::new(CALLERS)),
        stop: stop.clone(),
    };
    Router::new().route("/settled", get(settled)).with_state(context)
}

async fn settled(State(context): State<Context>, Query(pairs): Query<Vec<(String, String)>>) -> Response {
    let parameters = match Parameters::of(pairs) {
        Ok(parameters) => parameters,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let Ok(_permit) = context.callers.try_acquire() else {
        let reason = format!("{CALLERS} requests wait for /settled already: try again later\n");
        return (StatusCode::TOO_MANY_REQUESTS, reason).into_response();
    };
    let outstanding = tokio::select! {
        outstanding = context.settling.wait(parameters.timeout) => outstanding,
        () = context.stop.requested() => {
            return (StatusCode::SERVICE_UNAVAILABLE, "testenv is stopping\n").into_response();
        }
    };
    match (outstanding.left.is_empty(), parameters.is_verbose) {
        (true, false) => StatusCode::NO_CONTENT.into_response(),
        (true, true) => response(StatusCode::OK, &outstanding),
        (false, _) => response(StatusCode::REQUEST_TIMEOUT, &outstanding),
    }
}

fn response(status: StatusCode, outstanding: &Outstanding) -> Response {
    let text = format!("{:#}\n", body(outstanding));
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

/// Returns the lists, each with at most [`ITEMS`] items, and the number of items left out.
fn body(outstanding: &Outstanding) -> Value {
    let Outstanding { left, waiting } = outstanding;
    let first = |items: &[String]| items.iter().take(ITEMS).cloned().collect::<Vec<_>>();
    let omitted = left.len().saturating_sub(ITEMS) + waiting.len().saturating_sub(ITEMS);
    json!({"left": first(left), "waiting": first(waiting), "omitted": omitted})
}

impl Parameters {
    fn of(pairs: Vec<(String, String)>) -> Result<Self, InvalidParameter> {
        let mut parameters = Self {
            timeout: DEFAULT_TIMEOUT,
            is_verbose: false,
        };
        for (name, value) in pairs {
            match &*name {
                "timeout" => {
                    let timeout = parse_duration(&value).ok();
                    let timeout = timeout.filter(|timeout| (MIN_TIMEOUT..=MAX_TIMEOUT).contains(timeout));
                    parameters.timeout = timeout.ok_or(InvalidParameter::Timeout(value))?;
                }
                "verbose" if value.is_empty() => parameters.is_verbose = true,
                "verbose" => return Err(InvalidParameter::Verbose(value)),
                _ => return Err(InvalidParameter::Unknown(name)),
            }
        }
        Ok(parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<(u128, bool), String> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let parameters = Parameters::of(pairs.collect()).map_err(|error| error.to_string())?;
        Ok((parameters.timeout.as_millis(), parameters.is_verbose))
    }

    #[test]
    fn parameters_have_defaults_and_limits() {
        assert_eq!(parse(&[]), Ok((10_000, false)));
        assert_eq!(parse(&[("timeout", "50s"), ("verbose", "")]), Ok((50_000, true)));
        assert_eq!(parse(&[("timeout", "1ms")]), Ok((1, false)));
        for value in ["", "10", "0s", "51s", "-1s", "soon"] {
            let error = parse(&[("timeout", value)]).unwrap_err();
            assert!(
                error.starts_with(&format!("invalid timeout {value:?}: give a duration")),
                "{error}"
            );
        }
        assert!(parse(&[("verbose", "yes")]).unwrap_err().contains("\"yes\""));
        assert!(parse(&[("time", "1s")]).unwrap_err().contains("\"time\""));
    }

    #[test]
    fn long_lists_are_cut() {
        let outstanding = Outstanding {
            left: (0..150).map(|number| number.to_string()).collect(),
            waiting: vec!["a".to_owned()],
        };
        let body = body(&outstanding);
        assert_eq!(body["left"].as_array().map(Vec::len), Some(100));
        assert_eq!((&body["waiting"], &body["omitted"]), (&json!(["a"]), &json!(50)));
    }
}
