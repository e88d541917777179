//! A separate thread for the listener.
//!
//! `/livez` must report a blocked worker thread, so serving must not depend on one.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Error, HttpEndpoints, Server};

/// The time limit at the end for pages that are still being rendered on other threads.
const PAGES_LIMIT: Duration = Duration::from_secs(1);

/// A listener that serves on its own thread. Dropping it stops the listener.
#[derive(Debug)]
pub struct ServerHandle {
    ended: oneshot::Receiver<Result<(), Error>>,
    _stop: DropGuard,
}

impl Server {
    /// Serves like [`serve`](Self::serve) until `stop` is cancelled, on a separate thread with its
    /// own runtime.
    ///
    /// # Errors
    ///
    /// Returns an error when the operating system cannot start a thread.
    pub fn spawn(self, endpoints: HttpEndpoints, stop: &CancellationToken) -> Result<ServerHandle, Error> {
        let (end, ended) = oneshot::channel();
        let stop = stop.child_token();
        let stopped = stop.clone();
        let serve = move || {
            // The receiver may be gone, and then nobody needs the result.
            drop(end.send(self.run(endpoints, stopped)));
        };
        thread::Builder::new()
            .name("serving".to_owned())
            .spawn(serve)
            .map_err(no_thread)?;
        Ok(ServerHandle {
            ended,
            _stop: stop.drop_guard(),
        })
    }

    fn run(self, endpoints: HttpEndpoints, stop: CancellationToken) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(no_thread)?;
        let result = runtime.block_on(self.serve(endpoints, stop));
        runtime.shutdown_timeout(PAGES_LIMIT);
        result
    }
}

impl ServerHandle {
    /// Waits for the end and returns the result.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Server::serve`], and [`Error::ThreadExited`].
    pub async fn ended(&mut self) -> Result<(), Error> {
        (&mut self.ended).await.unwrap_or(Err(Error::ThreadExited))
    }
}

fn no_thread(source: io::Error) -> Error {
    Error::Thread { source }
}
