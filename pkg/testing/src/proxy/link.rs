//! The link between clients and the apiserver: which fault it has, and the sockets that obey it.
//!
//! Architecture Invariant: a [`FaultStream`] reads and writes under the lock that a fault is set under. So once a fault has been set, not a
//! byte more passes that it forbids, whatever was under way.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LinkMode {
    /// Everything.
    #[default]
    Open,
    /// Nothing, and everybody is told.
    Cut,
    /// Nothing, and nobody is told.
    BlackHole,
    /// Requests; no answers.
    HoldResponses,
}

/// The state of the link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkState {
    pub(crate) mode: LinkMode,
    /// How often it was cut so far: a connection that is older than the last cut is broken, even if the link was healed at once.
    pub(crate) cuts: u64,
    /// How long each request, and each part of a watch, is under way.
    pub(crate) delay: Duration,
}

/// What becomes of bytes that want to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Pass,
    Wait,
    Break,
}

impl LinkState {
    /// Over bytes of a connection that was opened after so many cuts.
    fn decide(&self, born: u64, is_answer: bool) -> Decision {
        match self.mode {
            _ if self.cuts != born => Decision::Break,
            LinkMode::Cut => Decision::Break,
            LinkMode::BlackHole => Decision::Wait,
            LinkMode::HoldResponses if is_answer => Decision::Wait,
            LinkMode::Open | LinkMode::HoldResponses => Decision::Pass,
        }
    }
}

/// Waits until what came at `arrival` has been under way for as long as the link's delay wants it to be by then.
pub(crate) async fn delayed(mut link: watch::Receiver<LinkState>, arrival: Instant) {
    loop {
        let due = arrival + link.borrow_and_update().delay;
        // Without the check a timer would round up to the next millisecond, when there is no delay at all.
        if due <= Instant::now() {
            return;
        }
        tokio::select! {
            () = sleep_until(due) => return,
            Ok(()) = link.changed() => {}
        }
    }
}

/// A socket whose bytes pass as the link allows.
pub(crate) struct FaultStream {
    stream: TcpStream,
    link: watch::Receiver<LinkState>,
    born: u64,
    /// Whether answers are written here, which a mute link holds back.
    writes_answers: bool,
    /// The next change of the link, while something waits for it.
    change: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl FaultStream {
    /// A gate before a socket of a connection that was opened after so many cuts.
    pub(crate) fn new(stream: TcpStream, link: watch::Receiver<LinkState>, born: u64) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            link,
            born,
            writes_answers: false,
            change: None,
        })
    }

    /// From now on what is written are answers. A handshake is none: on a mute link clients still connect.
    pub(crate) fn write_answers(&mut self) {
        self.writes_answers = true;
    }

    /// Does `io` once the link lets such bytes pass.
    fn poll_through<T>(
        &mut self,
        ctx: &mut Context<'_>,
        is_answer: bool,
        mut io: impl FnMut(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            {
                let link = self.link.borrow_and_update();
                match link.decide(self.born, is_answer) {
                    Decision::Pass => return io(Pin::new(&mut self.stream), ctx),
                    Decision::Break => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    Decision::Wait => {}
                }
            }
            // A change that the other direction waits for will do: whoever finds it too old looks again.
            let link = &self.link;
            let change = self.change.get_or_insert_with(|| Box::pin(change(link.clone())));
            ready!(change.as_mut().poll(ctx));
            self.change = None;
        }
    }
}

async fn change(mut link: watch::Receiver<LinkState>) {
    if link.changed().await.is_err() {
        // Nobody is left to heal it.
        std::future::pending::<()>().await;
    }
}

impl Drop for FaultStream {
    /// The end of a connection that was cut is a reset; any other end is the ordinary one.
    fn drop(&mut self) {
        if self.link.borrow().cuts != self.born {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for FaultStream {
    fn poll_read(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_through(ctx, false, |stream, ctx| stream.poll_read(ctx, buf))
    }
}

impl AsyncWrite for FaultStream {
    fn poll_write(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let is_answer = self.writes_answers;
        self.poll_through(ctx, is_answer, |stream, ctx| stream.poll_write(ctx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(ctx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let is_answer = self.writes_answers;
        self.poll_through(ctx, is_answer, AsyncWrite::poll_shutdown)
    }
}

#[cfg(test)]
mod tests {
    use super::Decision::{Break, Pass, Wait};
    use super::*;

    #[test]
    fn each_passage_has_its_verdict_over_requests_and_over_answers() {
        for (mode, request, answer) in [
            (LinkMode::Open, Pass, Pass),
            (LinkMode::Cut, Break, Break),
            (LinkMode::BlackHole, Wait, Wait),
            (LinkMode::HoldResponses, Pass, Wait),
        ] {
            let link = LinkState {
                mode,
                cuts: 3,
                ..LinkState::default()
            };
            assert_eq!(
                (link.decide(3, false), link.decide(3, true)),
                (request, answer),
                "{mode:?}"
            );
            // Whatever came after the cut, a connection from before it is broken.
            assert_eq!(
                (link.decide(2, false), link.decide(2, true)),
                (Break, Break),
                "{mode:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_that_is_changed_counts_from_the_arrival() {
        let link = watch::Sender::new(LinkState::default());
        let begun = Instant::now();
        let arrive = || delayed(link.subscribe(), begun);
        arrive().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);

        let set = |seconds| link.send_modify(|link| link.delay = Duration::from_secs(seconds));
        set(60);
        let shorten = async {
            sleep_until(begun + Duration::from_secs(5)).await;
            set(10);
        };
        tokio::join!(arrive(), shorten);
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        set(0);
        arrive().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
    }
}
