//! One connection from the accept to its end, and the bounded set of all that are open.
//!
//! Architecture Invariant: there is a fixed number of slots, and only a connection with a request in work, or one that
//! has just come or just been answered, is safe from having its slot given to somebody else. So neither clients that
//! never finish a handshake, nor ones that send their headers a byte a minute, nor ones that never read their answer can
//! keep a probe out.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::endpoints::RequestHandler;

/// The most bytes of one request's head, and of one read: two hundred times what probes and scrapers send, and small
/// enough that every slot can be filled with them.
const BUFFER: usize = 64 * 1024;

/// The bounds of everything that a client could otherwise make endless.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections open at a time. The kubelet, a few scrapers and a person make a dozen; a slot costs at most some
    /// 200 kB of buffers beside the answer that its client has not read yet.
    pub(crate) connections: usize,
    /// How long a connection may be unused before another may take its slot: enough for a handshake and a request that
    /// follows it, and so little that a flood of silent connections is thrown out as fast as it comes.
    pub(crate) eviction_grace: Duration,
    /// From the accept to the end of the TLS handshake.
    pub(crate) handshake: Duration,
    /// From being ready for a request to having its whole head: also how long an unused connection is kept, so it is
    /// longer than the usual scrape interval.
    pub(crate) headers: Duration,
    /// From a request's head to its answer's head.
    pub(crate) request: Duration,
    /// From the stop to the end of the last connection.
    pub(crate) drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            eviction_grace: Duration::from_millis(100),
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(32),
            request: Duration::from_mins(1),
            drain: Duration::from_secs(5),
        }
    }
}

/// What every connection is given.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) handler: RequestHandler,
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) limits: Limits,
    pub(crate) stop: CancellationToken,
}

/// What the accept loop and a connection's task know of each other.
struct Slot {
    usage: watch::Sender<Usage>,
    evict: CancellationToken,
}

#[derive(Clone, Copy)]
enum Usage {
    /// No request is in work: the handshake or the next head is awaited, or an answer is being sent.
    Unused {
        since: Instant,
    },
    Active,
}

/// The open connections.
pub(crate) struct Connections {
    shared: Shared,
    tasks: JoinSet<()>,
    slots: Vec<(task::Id, Arc<Slot>)>,
    /// Some connection has answered its request.
    idle: Arc<Notify>,
}

impl Connections {
    pub(crate) fn new(shared: Shared) -> Self {
        Self {
            shared,
            tasks: JoinSet::new(),
            slots: Vec::new(),
            idle: Arc::default(),
        }
    }

    /// Waits for the end of a connection; for ever while there is none.
    pub(crate) async fn reap(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.forget(ended),
            None => std::future::pending().await,
        }
    }

    fn forget(&mut self, ended: Result<(task::Id, ()), JoinError>) {
        let ended = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "a request's handler panicked, its connection is closed");
                }
                error.id()
            }
        };
        self.slots.retain(|(id, _)| *id != ended);
    }

    /// Waits until one more connection may be opened. When all slots are taken, the connection that has been unused for
    /// longest is closed, once it has been for long enough.
    pub(crate) async fn make_room(&mut self) {
        while self.slots.len() >= self.shared.limits.connections {
            let unused = self.slots.iter().filter_map(|(_, slot)| match *slot.usage.borrow() {
                Usage::Unused { since } => Some((since, slot)),
                Usage::Active => None,
            });
            let ripe = match unused.min_by_key(|(since, _)| *since) {
                Some((since, slot)) if since.elapsed() >= self.shared.limits.eviction_grace => {
                    slot.evict.cancel();
                    None
                }
                Some((since, _)) => Some(since + self.shared.limits.eviction_grace),
                None => None,
            };
            let idle = Arc::clone(&self.idle);
            tokio::select! {
                () = self.reap() => {}
                () = idle.notified() => {}
                () = tokio::time::sleep_until(ripe.unwrap_or_else(Instant::now)), if ripe.is_some() => {}
            }
        }
    }

    /// Serves the connection in a task of its own. The caller has made room for it.
    pub(crate) fn open(&mut self, stream: TcpStream, peer: SocketAddr) {
        let usage = watch::Sender::new(Usage::Unused { since: Instant::now() });
        let slot = Arc::new(Slot {
            usage,
            evict: CancellationToken::new(),
        });
        let (shared, theirs, idle) = (self.shared.clone(), Arc::clone(&slot), Arc::clone(&self.idle));
        let task = self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = theirs.evict.cancelled() => tracing::debug!(%peer, "closing a connection to make room for another"),
                () = serve(stream, peer, shared, &theirs, &idle) => {}
            }
        });
        self.slots.push((task.id(), slot));
    }

    /// Lets the requests in work end, as long as the limit allows, and joins every task.
    ///
    /// The stop of [`Shared`] has been given: the connections have heard it themselves.
    pub(crate) async fn drain(mut self) {
        let limit = self.shared.limits.drain;
        let all_ended = async {
            while !self.tasks.is_empty() {
                self.reap().await;
            }
        };
        if tokio::time::timeout(limit, all_ended).await.is_err() {
            tracing::warn!(
                connections = self.tasks.len(),
                "closing connections that did not end in time"
            );
            self.tasks.shutdown().await;
        }
    }
}

/// Serves one connection until the client, a limit or the stop ends it.
async fn serve(stream: TcpStream, peer: SocketAddr, shared: Shared, slot: &Arc<Slot>, idle: &Arc<Notify>) {
    let Shared {
        handler,
        acceptor,
        limits,
        stop,
    } = shared;
    let handshake = tokio::time::timeout(limits.handshake, acceptor.accept(stream));
    let stream = tokio::select! {
        () = stop.cancelled() => return,
        shaken = handshake => match shaken {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "the TLS handshake failed"),
            Err(_) => return tracing::debug!(%peer, limit = ?limits.handshake, "the TLS handshake took too long"),
        },
    };

    let service = service_fn(|request: Request<Incoming>| {
        let handler = &handler;
        async move {
            let _serving = ActiveRequest::begin(slot, idle);
            Ok::<_, Infallible>(handler.handle(request.map(Body::new)).await)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.headers)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a connection ended early");
    }
}

/// Marks the slot as one with a request in work, until it is dropped.
struct ActiveRequest<'a> {
    slot: &'a Slot,
    idle: &'a Notify,
}

impl<'a> ActiveRequest<'a> {
    fn begin(slot: &'a Slot, idle: &'a Notify) -> Self {
        slot.usage.send_replace(Usage::Active);
        Self { slot, idle }
    }
}

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.slot.usage.send_replace(Usage::Unused { since: Instant::now() });
        self.idle.notify_one();
    }
}
