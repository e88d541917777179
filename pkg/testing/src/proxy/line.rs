//! The line between clients and the apiserver: which fault it has, and the sockets that obey it.
//!
//! Architecture Invariant: a [`Gate`] reads and writes under the lock that a fault is set under. So once a fault has been set, not a
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
pub(crate) enum Passage {
    /// Everything.
    #[default]
    Open,
    /// Nothing, and everybody is told.
    Cut,
    /// Nothing, and nobody is told.
    BlackHole,
    /// Requests; no answers.
    Mute,
}

/// The state of the line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    pub(crate) passage: Passage,
    /// How often it was cut so far: a connection that is older than the last cut is broken, even if the line was healed at once.
    pub(crate) cuts: u64,
    /// How long each request, and each part of a watch, is under way.
    pub(crate) delay: Duration,
}

/// What becomes of bytes that want to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Wait,
    Break,
}

impl Line {
    /// Over bytes of a connection that was opened after so many cuts.
    fn verdict(&self, born: u64, is_answer: bool) -> Verdict {
        match self.passage {
            _ if self.cuts != born => Verdict::Break,
            Passage::Cut => Verdict::Break,
            Passage::BlackHole => Verdict::Wait,
            Passage::Mute if is_answer => Verdict::Wait,
            Passage::Open | Passage::Mute => Verdict::Pass,
        }
    }
}

/// Waits until what came at `arrival` has been under way for as long as the line's delay wants it to be by then.
pub(crate) async fn delayed(mut line: watch::Receiver<Line>, arrival: Instant) {
    loop {
        let due = arrival + line.borrow_and_update().delay;
        // Without the check a timer would round up to the next millisecond, when there is no delay at all.
        if due <= Instant::now() {
            return;
        }
        tokio::select! {
            () = sleep_until(due) => return,
            Ok(()) = line.changed() => {}
        }
    }
}

/// A socket whose bytes pass as the line allows.
pub(crate) struct Gate {
    stream: TcpStream,
    line: watch::Receiver<Line>,
    born: u64,
    /// Whether answers are written here, which a mute line holds back.
    writes_answers: bool,
    /// The next change of the line, while something waits for it.
    change: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Gate {
    /// A gate before a socket of a connection that was opened after so many cuts.
    pub(crate) fn new(stream: TcpStream, line: watch::Receiver<Line>, born: u64) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            line,
            born,
            writes_answers: false,
            change: None,
        })
    }

    /// From now on what is written are answers. A handshake is none: on a mute line clients still connect.
    pub(crate) fn write_answers(&mut self) {
        self.writes_answers = true;
    }

    /// Does `io` once the line lets such bytes pass.
    fn poll_through<T>(
        &mut self,
        ctx: &mut Context<'_>,
        is_answer: bool,
        mut io: impl FnMut(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            {
                let line = self.line.borrow_and_update();
                match line.verdict(self.born, is_answer) {
                    Verdict::Pass => return io(Pin::new(&mut self.stream), ctx),
                    Verdict::Break => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    Verdict::Wait => {}
                }
            }
            // A change that the other direction waits for will do: whoever finds it too old looks again.
            let line = &self.line;
            let change = self.change.get_or_insert_with(|| Box::pin(change(line.clone())));
            ready!(change.as_mut().poll(ctx));
            self.change = None;
        }
    }
}

async fn change(mut line: watch::Receiver<Line>) {
    if line.changed().await.is_err() {
        // Nobody is left to heal it.
        std::future::pending::<()>().await;
    }
}

impl Drop for Gate {
    /// The end of a connection that was cut is a reset; any other end is the ordinary one.
    fn drop(&mut self) {
        if self.line.borrow().cuts != self.born {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Gate {
    fn poll_read(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_through(ctx, false, |stream, ctx| stream.poll_read(ctx, buf))
    }
}

impl AsyncWrite for Gate {
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
    use super::Verdict::{Break, Pass, Wait};
    use super::*;

    #[test]
    fn each_passage_has_its_verdict_over_requests_and_over_answers() {
        for (passage, request, answer) in [
            (Passage::Open, Pass, Pass),
            (Passage::Cut, Break, Break),
            (Passage::BlackHole, Wait, Wait),
            (Passage::Mute, Pass, Wait),
        ] {
            let line = Line {
                passage,
                cuts: 3,
                ..Line::default()
            };
            assert_eq!(
                (line.verdict(3, false), line.verdict(3, true)),
                (request, answer),
                "{passage:?}"
            );
            // Whatever came after the cut, a connection from before it is broken.
            assert_eq!(
                (line.verdict(2, false), line.verdict(2, true)),
                (Break, Break),
                "{passage:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_that_is_changed_counts_from_the_arrival() {
        let line = watch::Sender::new(Line::default());
        let begun = Instant::now();
        let arrive = || delayed(line.subscribe(), begun);
        arrive().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);

        let set = |seconds| line.send_modify(|line| line.delay = Duration::from_secs(seconds));
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
