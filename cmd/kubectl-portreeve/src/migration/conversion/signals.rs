//! SIGINT and SIGTERM of a command that must not stop between two changes.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::super::progress::report;

/// Counts SIGINT and SIGTERM. As long as it exists, they do not end the process.
pub(super) struct Signals {
    /// `None` if the operating system does not report signals; they end the process then.
    streams: Option<(Signal, Signal)>,
    received: u32,
}

impl Signals {
    pub(super) fn new() -> Self {
        let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        Self {
            streams: interrupt.ok().zip(terminate.ok()),
            received: 0,
        }
    }

    /// Runs a step that the first signal ends. Returns `None` then.
    pub(super) async fn until_first<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        self.until(1, step).await
    }

    /// Runs a step that only the second signal ends, because a request that was sent has an effect.
    /// Returns `None` then.
    pub(super) async fn until_second<T>(&mut self, step: impl Future<Output = T>) -> Option<T> {
        self.until(2, step).await
    }

    async fn until<T>(&mut self, count: u32, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.received(count) => None,
            result = step => Some(result),
        }
    }

    /// Waits until this many signals were received in all.
    async fn received(&mut self, count: u32) {
        while self.received < count {
            let Some((interrupt, terminate)) = &mut self.streams else {
                return std::future::pending().await;
            };
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            self.received += 1;
            if self.received == 1 {
                report("interrupted: undoing the changes; interrupt the command again to stop at once");
            }
        }
    }
}
