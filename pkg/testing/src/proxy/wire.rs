//! A socket whose bytes arrive late in both directions, like those of a distant host.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// The size of the buffer for one read from the socket, in bytes.
const READ_SIZE: usize = 16 << 10;

/// A socket with a delay. Bytes in flight do not delay each other. Without a delay, it passes all
/// calls to the socket.
pub(crate) struct Wire {
    socket: TcpStream,
    /// The delay of the bytes that are read and written from now on.
    pub(crate) delay: Duration,
    incoming: InFlight,
    outgoing: InFlight,
    is_ended: bool,
}

/// Bytes in flight in one direction.
#[derive(Default)]
struct InFlight {
    chunks: VecDeque<(Instant, Bytes)>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl InFlight {
    fn push(&mut self, delay: Duration, bytes: &[u8]) {
        let arrival = Instant::now() + delay;
        self.chunks.push_back((arrival, Bytes::copy_from_slice(bytes)));
    }

    /// Waits for the arrival of the first bytes. Returns `None` if none are in flight.
    fn poll_first(&mut self, ctx: &mut Context<'_>) -> Poll<Option<&mut Bytes>> {
        let Some((arrival, _)) = self.chunks.front() else {
            return Poll::Ready(None);
        };
        if *arrival > Instant::now() {
            let timer = self.timer.insert(Box::pin(sleep_until(*arrival)));
            ready!(timer.as_mut().poll(ctx));
        }
        Poll::Ready(self.chunks.front_mut().map(|(_, bytes)| bytes))
    }

    /// Removes the first `count` bytes of the first chunk.
    fn advance(&mut self, count: usize) {
        if let Some((_, bytes)) = self.chunks.front_mut() {
            bytes.advance(count);
        }
        while self.chunks.front().is_some_and(|(_, bytes)| bytes.is_empty()) {
            self.chunks.pop_front();
        }
    }
}

impl Wire {
    /// Wraps a socket, without a delay.
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self {
            socket,
            delay: Duration::ZERO,
            incoming: InFlight::default(),
            outgoing: InFlight::default(),
            is_ended: false,
        }
    }

    /// Resets the connection when this is dropped, instead of closing it normally.
    pub(crate) fn reset_on_drop(&self) {
        // Setting the option fails only on a connection that is already closed.
        let _ = self.socket.set_zero_linger();
    }

    /// Moves everything that the socket has received into flight.
    fn receive(&mut self, ctx: &mut Context<'_>) -> io::Result<()> {
        let mut space = [0; READ_SIZE];
        while !self.is_ended {
            let mut buf = ReadBuf::new(&mut space);
            match Pin::new(&mut self.socket).poll_read(ctx, &mut buf) {
                Poll::Pending => break,
                Poll::Ready(result) => result?,
            }
            if buf.filled().is_empty() {
                self.is_ended = true;
            } else {
                self.incoming.push(self.delay, buf.filled());
            }
        }
        Ok(())
    }

    /// Sends what has arrived, and wakes the task when more does. Like the kernel, this does not
    /// wait for the rest.
    fn send(&mut self, ctx: &mut Context<'_>) -> io::Result<()> {
        match self.poll_send(ctx) {
            Poll::Ready(result) => result,
            Poll::Pending => Ok(()),
        }
    }

    /// Sends everything in flight.
    fn poll_send(&mut self, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(bytes) = ready!(self.outgoing.poll_first(ctx)) {
            let count = ready!(Pin::new(&mut self.socket).poll_write(ctx, bytes))?;
            self.outgoing.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let is_idle = self.incoming.chunks.is_empty() && self.outgoing.chunks.is_empty();
        if self.delay.is_zero() && !self.is_ended && is_idle {
            return Pin::new(&mut self.socket).poll_read(ctx, buf);
        }
        self.send(ctx)?;
        self.receive(ctx)?;
        if self.incoming.chunks.is_empty() && !self.is_ended {
            return Poll::Pending;
        }
        if let Some(bytes) = ready!(self.incoming.poll_first(ctx)) {
            let count = bytes.len().min(buf.remaining());
            buf.put_slice(&bytes[..count]);
            self.incoming.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, ctx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let delay = self.delay;
        if delay.is_zero() && self.outgoing.chunks.is_empty() {
            return Pin::new(&mut self.socket).poll_write(ctx, buf);
        }
        self.outgoing.push(delay, buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.send(ctx)?;
        Pin::new(&mut self.socket).poll_flush(ctx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(ctx))?;
        Pin::new(&mut self.socket).poll_shutdown(ctx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn bytes_are_delayed_in_both_directions_without_delaying_each_other() -> io::Result<()> {
        const DELAY: Duration = Duration::from_millis(200);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (mut near, far) = tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
        let mut wire = Wire::new(far.0);
        wire.delay = DELAY;
        let begun = Instant::now();
        near.write_all(b"ping").await?;
        let mut word = [0; 4];
        wire.read_exact(&mut word).await?;
        assert_eq!((&word, begun.elapsed() >= DELAY), (b"ping", true));
        for part in [b"po", b"ng"] {
            wire.write_all(part).await?;
        }
        wire.flush().await?;
        assert!(!wire.outgoing.chunks.is_empty(), "flush waited for the delay");
        let (ended, read) = tokio::join!(wire.shutdown(), near.read_exact(&mut word));
        ended.and(read)?;
        assert_eq!((&word, begun.elapsed() >= 2 * DELAY), (b"pong", true));
        assert_eq!(near.read(&mut word).await?, 0);
        Ok(())
    }
}
