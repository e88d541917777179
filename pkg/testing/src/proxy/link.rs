//! The link between clients and the apiserver: its fault, and the sockets that obey it.
//!
//! Architecture Invariant: a [`FaultStream`] reads and writes under the lock that protects the
//! state of the link. Once a fault is set, no byte that it forbids passes, except bytes that a slow
//! wire already holds.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::wire::Wire;

/// Which data the link lets pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkMode {
    /// All data.
    #[default]
    Open,
    /// Nothing; connections are reset.
    Cut,
    /// Nothing; connections stay open.
    BlackHole,
    /// Requests but no responses.
    HoldResponses,
}

/// The state of the link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkState {
    pub(crate) mode: LinkMode,
    /// The number of cuts so far. A connection that is older than the last cut is broken, even if
    /// the link was healed at once.
    pub(crate) cuts: u64,
    /// The delay of each request and of each part of a watch.
    pub(crate) delay: Duration,
    /// The delay of all bytes between the client and the proxy, in each direction.
    pub(crate) wire_delay: Duration,
}

/// What to do with bytes that arrive at the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Pass,
    Wait,
    Break,
}

impl LinkState {
    /// Decides on bytes of a connection that was opened after `born_after` cuts.
    fn decide(&self, born_after: u64, is_response: bool) -> Decision {
        match self.mode {
            _ if self.cuts != born_after => Decision::Break,
            LinkMode::Cut => Decision::Break,
            LinkMode::BlackHole => Decision::Wait,
            LinkMode::HoldResponses if is_response => Decision::Wait,
            LinkMode::Open | LinkMode::HoldResponses => Decision::Pass,
        }
    }
}

/// Waits until the link's delay since `arrival` has passed. The delay may change meanwhile.
pub(crate) async fn delayed(mut link: watch::Receiver<LinkState>, arrival: Instant) {
    loop {
        let due = arrival + link.borrow_and_update().delay;
        // Without a delay, return now, because a timer would round up to the next millisecond.
        if due <= Instant::now() {
            return;
        }
        tokio::select! {
            () = sleep_until(due) => return,
            Ok(()) = link.changed() => {}
        }
    }
}

/// A socket that obeys the state of the link.
pub(crate) struct FaultStream {
    wire: Wire,
    link: watch::Receiver<LinkState>,
    born_after: u64,
    has_wire_delay: bool,
    /// Whether written bytes are responses, which the link may hold back.
    writes_responses: bool,
    /// The future of the next change of the link, while a read or a write waits for it.
    next_change: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl FaultStream {
    /// Wraps a socket of a connection that was opened after `born_after` cuts. The delay of the
    /// wire does not apply to it.
    pub(crate) fn new(stream: TcpStream, link: watch::Receiver<LinkState>, born_after: u64) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            wire: Wire::new(stream),
            link,
            born_after,
            has_wire_delay: false,
            writes_responses: false,
            next_change: None,
        })
    }

    /// Applies the delay of the wire.
    pub(crate) fn with_wire_delay(mut self) -> Self {
        self.has_wire_delay = true;
        self
    }

    /// Treats written bytes as responses from now on. The TLS handshake is no response, so clients
    /// can connect while responses are held back.
    pub(crate) fn start_responses(&mut self) {
        self.writes_responses = true;
    }

    /// Calls `io` once the link lets bytes of this direction pass.
    fn poll_through<T>(
        &mut self,
        ctx: &mut Context<'_>,
        is_response: bool,
        mut io: impl FnMut(Pin<&mut Wire>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            {
                let link = self.link.borrow_and_update();
                match link.decide(self.born_after, is_response) {
                    Decision::Pass => {
                        if self.has_wire_delay {
                            self.wire.delay = link.wire_delay;
                        }
                        return io(Pin::new(&mut self.wire), ctx);
                    }
                    Decision::Break => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    Decision::Wait => {}
                }
            }
            // Both directions share this future. If it reports an outdated change, the loop checks
            // again.
            let link = &self.link;
            let next_change = self
                .next_change
                .get_or_insert_with(|| Box::pin(next_change(link.clone())));
            ready!(next_change.as_mut().poll(ctx));
            self.next_change = None;
        }
    }
}

async fn next_change(mut link: watch::Receiver<LinkState>) {
    if link.changed().await.is_err() {
        // The sender is gone, so nothing can heal the link.
        std::future::pending::<()>().await;
    }
}

impl Drop for FaultStream {
    /// Resets the connection if it was cut, and closes it normally otherwise.
    fn drop(&mut self) {
        if self.link.borrow().cuts != self.born_after {
            self.wire.reset_on_drop();
        }
    }
}

impl AsyncRead for FaultStream {
    fn poll_read(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_through(ctx, false, |wire, ctx| wire.poll_read(ctx, buf))
    }
}

impl AsyncWrite for FaultStream {
    fn poll_write(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let is_response = self.writes_responses;
        self.poll_through(ctx, is_response, |wire, ctx| wire.poll_write(ctx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(ctx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_response = self.writes_responses;
        self.poll_through(ctx, is_response, AsyncWrite::poll_shutdown)
    }
}
