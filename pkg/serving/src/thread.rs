//! The listener's own thread.
//!
//! What /livez is for is to tell of somebody who blocks the threads that everything else runs on; it must not need one of them.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{Error, HttpEndpoints, Server};

/// How long the end waits for pages that are still being made on threads of theirs.
const PAGES_LIMIT: Duration = Duration::from_secs(1);

/// A listener that serves on its own thread. Dropped, it stops.
#[derive(Debug)]
pub struct ServerHandle {
    ended: oneshot::Receiver<Result<(), Error>>,
    _stop: DropGuard,
}

impl Server {
    /// Serves until `stop` as [`serve`](Self::serve) does, on a thread and a runtime of its own.
    ///
    /// # Errors
    /// If the operating system has no thread to give.
    pub fn spawn(self, endpoints: HttpEndpoints, stop: &CancellationToken) -> Result<ServerHandle, Error> {
        let (end, ended) = oneshot::channel();
        let stop = stop.child_token();
        let stopped = stop.clone();
        let serve = move || {
            // Who is not there any more needs no answer.
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
    /// How it ended.
    ///
    /// # Errors
    /// Those of [`Server::serve`], and [`Error::ThreadExited`].
    pub async fn ended(&mut self) -> Result<(), Error> {
        (&mut self.ended).await.unwrap_or(Err(Error::ThreadExited))
    }
}

fn no_thread(source: io::Error) -> Error {
    Error::Thread { source }
}
