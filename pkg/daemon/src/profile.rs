//! `/debug/pprof/profile`: a CPU profile of this process, for `go tool pprof`.
//!
//! While a profile is taken, the kernel interrupts a running thread for each 10 ms of CPU time, and
//! the crate `pprof` records the thread's stack. At all other times, nothing is recorded.
//!
//! Architecture Invariant: the thread that serves only waits. Another thread starts and ends the
//! recording, and looks up the names of the functions.

mod encode;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Query;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use jiff::Timestamp;
use pprof::ProfilerGuardBuilder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// The path of the page.
pub(crate) const PATH: &str = "/debug/pprof/profile";

/// The length of a profile in seconds, as in Go.
const DEFAULT_SECONDS: u64 = 30;
const LONGEST_SECONDS: u64 = 300;
/// The number of samples for each second of CPU time, as in Go.
const FREQUENCY: i32 = 100;
/// The stack of the thread. `pprof` iterates over its samples with thousands of nested calls.
const STACK: usize = 64 << 20;
/// A folder in memory, which every container has. `pprof` needs a temporary file, and the image has
/// no other folder that can be written to.
const SHARED_MEMORY: &str = "/dev/shm";

/// A profile that cannot be taken.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to create a temporary file: mount a folder at /tmp or /dev/shm")]
    Folder(#[source] io::Error),
    #[error("failed to start the profiler")]
    Start(#[source] pprof::Error),
    #[error("failed to collect the samples")]
    Collect(#[source] pprof::Error),
    #[error("failed to compress the profile")]
    Compress(#[source] io::Error),
}

/// Returns the route of the page.
pub(crate) fn routes() -> Router {
    // There is one signal handler and one timer per process.
    let slot = Arc::new(Semaphore::new(1));
    let page = async move |Query(pairs): Query<Vec<(String, String)>>| match length(&pairs) {
        Ok(length) => take(length, &slot).await,
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    Router::new().route(PATH, get(page))
}

/// A query that asks for a length that is not allowed.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid seconds={text:?}: send a whole number from 1 to {LONGEST_SECONDS}, as in ?seconds=30")]
struct InvalidLength {
    text: String,
}

/// Returns the length that the query asks for.
fn length(pairs: &[(String, String)]) -> Result<Duration, InvalidLength> {
    let text = pairs.iter().find(|(name, _)| name == "seconds");
    let Some((_, text)) = text.filter(|(_, text)| !text.is_empty()) else {
        return Ok(Duration::from_secs(DEFAULT_SECONDS));
    };
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (1..=LONGEST_SECONDS).contains(seconds));
    let seconds = seconds.ok_or_else(|| InvalidLength { text: text.clone() });
    seconds.map(Duration::from_secs)
}

/// Starts a profile, and responds with a body that ends with it. If the client goes away, the body
/// is dropped, and that ends the profile.
async fn take(length: Duration, slot: &Arc<Semaphore>) -> Response {
    let Ok(permit) = Arc::clone(slot).try_acquire_owned() else {
        let problem = "failed to start a profile: another one is being taken; try again when it has ended\n";
        return (StatusCode::CONFLICT, problem).into_response();
    };
    let (start, started) = oneshot::channel();
    let (finish, finished) = oneshot::channel();
    let (stop, stopped) = channel();
    let record = move || {
        let profile = record(length, start, &stopped, permit);
        // Nobody waits for it if the client is gone.
        finish.send(profile).ok();
    };
    let thread = thread::Builder::new().name("profile".to_owned()).stack_size(STACK);
    if let Err(error) = thread.spawn(record) {
        return failure(&format!("failed to start a thread: {error}"));
    }
    if started.await.is_err() {
        let error = finished.await.ok().and_then(Result::err);
        return failure(&error.map_or_else(
            || "the profiler panicked".to_owned(),
            |error| portreeve_client::error_chain(&error),
        ));
    }
    tracing::info!(seconds = length.as_secs(), "started CPU profile");
    let body = stream::once(async move {
        let _stop = stop;
        let profile = finished.await.map_err(io::Error::other)?;
        profile.map_err(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to finish CPU profile");
            io::Error::other(error)
        })
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (
            CONTENT_DISPOSITION,
            HeaderValue::from_static("attachment; filename=\"profile\""),
        ),
    ];
    (headers, Body::from_stream(body)).into_response()
}

fn failure(problem: &str) -> Response {
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("failed to take a profile: {problem}\n"),
    )
        .into_response()
}

/// Records until the time is over, and returns the encoded profile, which is empty if nobody wants
/// it any more. Reports the start by dropping `started` after a value.
fn record(
    length: Duration,
    started: oneshot::Sender<()>,
    stopped: &Receiver<()>,
    _permit: OwnedSemaphorePermit,
) -> Result<Vec<u8>, Error> {
    find_folder().map_err(Error::Folder)?;
    let guard = ProfilerGuardBuilder::default().frequency(FREQUENCY).build();
    let guard = guard.map_err(Error::Start)?;
    let (from, began) = (Timestamp::now(), Instant::now());
    started.send(()).ok();
    if stopped.recv_timeout(length) != Err(RecvTimeoutError::Timeout) {
        return Ok(Vec::new());
    }
    let duration = began.elapsed();
    let report = guard.report().build();
    drop(guard);
    let stacks = report.map_err(Error::Collect)?.data;
    encode::encode(&stacks, FREQUENCY, from, duration).map_err(Error::Compress)
}

/// Makes sure that there is a folder for temporary files.
fn find_folder() -> io::Result<()> {
    if tempfile::tempfile().is_ok() {
        return Ok(());
    }
    tempfile::tempfile_in(SHARED_MEMORY)?;
    // Fails if it has been called before, with the same folder.
    tempfile::env::override_temp_dir(Path::new(SHARED_MEMORY)).ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_bounded() {
        let length = |query: &[(&str, &str)]| {
            let pairs = query
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            length(&pairs.collect::<Vec<_>>()).map(|length| length.as_secs())
        };
        for (query, expected) in [
            (&[][..], 30),
            (&[("seconds", "")], 30),
            (&[("debug", "1"), ("seconds", "1")], 1),
            (&[("seconds", "300"), ("seconds", "x")], 300),
        ] {
            assert_eq!(length(query), Ok(expected), "{query:?}");
        }
        for invalid in ["0", "301", "-1", "1.5", "5s", " 5", "18446744073709551616", "é\n"] {
            let problem = length(&[("seconds", invalid)]).unwrap_err().to_string();
            assert!(
                problem.contains("from 1 to 300") && problem.lines().count() == 1,
                "{problem}"
            );
        }
    }
}
