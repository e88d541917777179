//! A separate thread for the listener.
//!
//! `/livez` must report a blocked runtime, so the listener must not depend on that runtime.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Error, Server, Service};

/// How long the shutdown waits for pages that are still being rendered on other threads.
const PAGES_TIMEOUT: Duration = Duration::from_secs(1);

/// A listener that serves on its own thread. Dropping it stops the listener.
#[derive(Debug)]
pub struct ServerHandle {
    ended: oneshot::Receiver<Result<(), Error>>,
    _stop: DropGuard,
}

impl Server {
    /// Serves like [`serve`](Self::serve) until `stop` is cancelled, on a separate thread with its own
    /// runtime. The thread has this name, and log lines show it.
    ///
    /// # Errors
    ///
    /// Returns an error when the operating system cannot start a thread.
    pub fn spawn(
        mut self,
        name: &'static str,
        service: impl Into<Service>,
        stop: &CancellationToken,
    ) -> Result<ServerHandle, Error> {
        self.name = name;
        let (end, ended) = oneshot::channel();
        let service = service.into();
        let stop = stop.child_token();
        let stopped = stop.clone();
        let serve = move || {
            // If the receiver was dropped, nobody needs the result.
            drop(end.send(self.run(service, stopped)));
        };
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(serve)
            .map_err(no_thread)?;
        Ok(ServerHandle {
            ended,
            _stop: stop.drop_guard(),
        })
    }

    fn run(self, service: Service, stop: CancellationToken) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(no_thread)?;
        let result = runtime.block_on(self.serve(service, stop));
        runtime.shutdown_timeout(PAGES_TIMEOUT);
        result
    }
}

impl ServerHandle {
    /// Waits until the listener has stopped, and returns its result.
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
