//! The stream of a connection: it ends if the client does not read a response, and knows since when
//! the server waits for the client.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Since when the server has been waiting for bytes of the client; `None` while it has not yet
/// processed those that have arrived. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Idle(Arc<Mutex<Option<Instant>>>);

impl Idle {
    pub(crate) fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }
}

/// A stream whose writes fail when a response has been waiting for its client for too long. The
/// next bytes that the client sends show that it has read the response.
pub(crate) struct ClientStream<S> {
    inner: S,
    limit: Duration,
    /// Runs since the response had to wait.
    waiting: Option<Pin<Box<Sleep>>>,
    idle: Idle,
}

impl<S> ClientStream<S> {
    pub(crate) fn new(inner: S, limit: Duration, idle: Idle) -> Self {
        Self {
            inner,
            limit,
            waiting: None,
            idle,
        }
    }

    /// Returns the result of a write, or an error if it has been pending for too long.
    fn check<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_pending() {
            let limit = self.limit;
            let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
            ready!(waiting.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.waiting = None;
        }
        let mut idle = self.idle.0.lock();
        *idle = read.is_pending().then(|| idle.unwrap_or_else(Instant::now));
        drop(idle);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.check(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(cx, bytes);
        self.check(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(cx);
        self.check(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.check(cx, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_ends_its_connection() {
        let (mut client, server) = duplex(8);
        let mut server = ClientStream::new(server, LIMIT, Idle::default());
        let started = Instant::now();
        let drip = async {
            loop {
                sleep(Duration::from_secs(3)).await;
                if client.read_u8().await.is_err() {
                    break;
                }
            }
        };
        let written = tokio::select! {
            written = server.write_all(&[0; 1_000]) => written,
            () = drip => panic!("the connection ended"),
        };
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn each_request_has_a_limit_of_its_own() {
        let (mut client, server) = duplex(8);
        let mut server = ClientStream::new(server, LIMIT, Idle::default());
        for _ in 0..5 {
            client.write_u8(1).await.unwrap();
            server.read_u8().await.unwrap();
            let read = async {
                sleep(LIMIT / 2).await;
                client.read_exact(&mut [0; 100]).await
            };
            let (written, read) = tokio::join!(server.write_all(&[0; 100]), read);
            assert!(written.is_ok() && read.is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_waits_for_its_client_once_it_has_read_everything() {
        let (mut client, server) = duplex(8);
        let idle = Idle::default();
        let mut server = ClientStream::new(server, LIMIT, idle.clone());
        client.write_u8(1).await.unwrap();
        assert_eq!(idle.since(), None, "a byte has arrived");
        server.read_u8().await.unwrap();
        assert_eq!(idle.since(), None);
        let started = Instant::now();
        let wait = tokio::time::timeout(LIMIT, server.read_u8());
        assert!(wait.await.is_err());
        assert_eq!(idle.since(), Some(started));
    }
}
