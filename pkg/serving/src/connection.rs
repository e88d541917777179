//! Serves connections, and bounds the number of open ones.
//!
//! Architecture Invariant: the number of slots is fixed. A connection is protected from eviction
//! only while it has an admitted request in progress, or for a short time in which its client sends
//! nothing, after its last request or after its last response. So clients that never finish a
//! handshake, send their headers byte by byte, never read their response, or wait until the
//! apiserver has rejected their credentials cannot block a probe. A connection whose bytes the
//! server has not processed yet is not evicted: under a flood of handshakes, those of probes would
//! never end. One that waits for the apiserver is evicted after all that wait for their clients,
//! and not at all if it has shown credentials that were accepted lately.

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
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::client_stream::{ClientStream, Idle};
use crate::endpoints::RequestHandler;

/// The largest size of a request's head and of one read. It is two hundred times the size of a
/// probe's or scraper's request, and small enough that all slots can use it at once.
const BUFFER: usize = 64 * 1024;

/// The limits for everything that a client could otherwise prolong forever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The maximum number of open connections. The kubelet, a few scrapers and a user need about a
    /// dozen. A slot needs at most about 200 kB of buffers plus the response that its client has
    /// not read yet.
    pub(crate) connections: usize,
    /// How long a connection may be unused before it can be evicted. This is long enough for a
    /// handshake and a request, and short enough to evict a flood of silent connections as fast as
    /// it arrives.
    pub(crate) eviction_grace: Duration,
    /// The time limit from the accept to the end of the TLS handshake.
    pub(crate) handshake: Duration,
    /// The time limit for receiving the head of the next request. It also limits how long an unused
    /// connection stays open, so it is longer than the usual scrape interval.
    pub(crate) headers: Duration,
    /// The time limit from the head of a request to the head of its response.
    pub(crate) request: Duration,
    /// How long a response may wait for its client.
    pub(crate) response: Duration,
    /// How old a connection must be for a stop request to close it before its first request. A
    /// client that has just connected fails a call if that happens, and does not repeat it.
    pub(crate) first_request: Duration,
    /// The time limit from the stop request to the end of the last connection.
    pub(crate) drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 128,
            eviction_grace: Duration::from_millis(40),
            handshake: Duration::from_secs(10),
            headers: Duration::from_secs(32),
            request: Duration::from_mins(1),
            response: Duration::from_mins(1),
            // Go's net/http has the same limit in Server.Shutdown.
            first_request: Duration::from_secs(5),
            drain: Duration::from_secs(5),
        }
    }
}

/// The state that all connections share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) handler: RequestHandler,
    /// The TLS configuration of new connections.
    pub(crate) config: watch::Receiver<Arc<ServerConfig>>,
    pub(crate) limits: Limits,
    pub(crate) stop: CancellationToken,
}

/// The state that the accept loop and a connection's task share.
struct Slot {
    usage: watch::Sender<Usage>,
    /// Since when a new connection waits for its client.
    idle: Idle,
    evict: CancellationToken,
}

#[derive(Clone, Copy)]
enum Usage {
    /// The connection waits for the handshake or for the first request.
    New {
        since: Instant,
    },
    /// A request waits for its admission.
    Admitting {
        since: Instant,
    },
    /// The connection waits for the next request, or sends a response.
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
    /// Notified when a connection has finished a request.
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

    /// Waits for the end of a connection. Never returns while no connection is open.
    pub(crate) async fn reap(&mut self) {
        match self.tasks.join_next_with_id().await {
            Some(ended) => self.release_slot(ended),
            None => std::future::pending().await,
        }
    }

    /// Frees the slot of a connection that has ended.
    fn release_slot(&mut self, ended: Result<(task::Id, ()), JoinError>) {
        let ended = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "closing connection after a panic in its request handler");
                }
                error.id()
            }
        };
        self.slots.retain(|(id, _)| *id != ended);
    }

    /// Returns whether there is a free slot.
    pub(crate) fn has_room(&self) -> bool {
        self.slots.len() < self.shared.limits.connections
    }

    /// Waits until one more connection may be opened. When all slots are taken, closes the
    /// connection that has been unused for the longest time, provided that its grace period is
    /// over.
    pub(crate) async fn make_room(&mut self) {
        while !self.has_room() {
            let grace = self.shared.limits.eviction_grace;
            let unused = self.slots.iter().filter_map(|(_, slot)| match *slot.usage.borrow() {
                Usage::New { .. } => {
                    // It may have to wait for its client soon.
                    let since = slot.idle.since().unwrap_or_else(Instant::now);
                    Some((false, since, slot))
                }
                Usage::Unused { since } => Some((false, since, slot)),
                Usage::Admitting { since } => Some((true, since, slot)),
                Usage::Active => None,
            });
            let evictable_at = match unused.min_by_key(|(is_last, since, _)| (*is_last, *since)) {
                Some((_, since, slot)) if since.elapsed() >= grace => {
                    slot.evict.cancel();
                    None
                }
                Some((_, since, _)) => Some(since + grace),
                None => None,
            };
            let idle = Arc::clone(&self.idle);
            tokio::select! {
                () = self.reap() => {}
                () = idle.notified() => {}
                () = tokio::time::sleep_until(evictable_at.unwrap_or_else(Instant::now)), if evictable_at.is_some() => {}
            }
        }
    }

    /// Serves the connection in a separate task. There must be a free slot.
    pub(crate) fn open(&mut self, stream: TcpStream, peer: SocketAddr) {
        // A response goes out at once. If that cannot be set, the connection works anyway.
        drop(stream.set_nodelay(true));
        let usage = watch::Sender::new(Usage::New { since: Instant::now() });
        let slot = Arc::new(Slot {
            usage,
            idle: Idle::default(),
            evict: CancellationToken::new(),
        });
        let (shared, task_slot, idle) = (self.shared.clone(), Arc::clone(&slot), Arc::clone(&self.idle));
        let task = self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = task_slot.evict.cancelled() => tracing::debug!(%peer, "evicting connection to make room for another"),
                () = serve(stream, peer, shared, &task_slot, &idle) => {}
            }
        });
        self.slots.push((task.id(), slot));
    }

    /// Waits for requests in progress and for the first requests of new connections, up to the time
    /// limits, and joins every task.
    ///
    /// The caller must have cancelled the `stop` token of [`Shared`], which every connection
    /// observes.
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

/// Serves one connection until the client, a time limit or the stop request ends it.
async fn serve(stream: TcpStream, peer: SocketAddr, shared: Shared, slot: &Arc<Slot>, idle: &Arc<Notify>) {
    let Shared {
        handler,
        config,
        limits,
        stop,
    } = shared;
    let acceptor = TlsAcceptor::from(Arc::clone(&config.borrow()));
    let stream = ClientStream::new(stream, limits.response, slot.idle.clone());
    let handshake = tokio::time::timeout(limits.handshake, acceptor.accept(stream));
    let mut stopped = pin!(slot.stopped(&stop, limits.first_request));
    let stream = tokio::select! {
        () = &mut stopped => return,
        result = handshake => match result {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "failed TLS handshake"),
            Err(_) => return tracing::debug!(%peer, limit = ?limits.handshake, "timed out TLS handshake"),
        },
    };

    let certificates: Vec<_> = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
    let service = service_fn(|request: Request<Incoming>| {
        let (handler, certificates) = (&handler, &certificates);
        async move {
            let request = request.map(Body::new);
            slot.received_request(handler.is_known(&request));
            let begin = || slot.begin_request();
            let response = handler.handle(request, certificates, begin).await;
            slot.answered_request(idle);
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = pin!(http(&limits).serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        // A request that has arrived is read before the connection is closed.
        biased;
        ended = connection.as_mut() => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended early");
    }
}

/// Returns the settings for reading requests.
pub(crate) fn http(limits: &Limits) -> http1::Builder {
    let mut settings = http1::Builder::new();
    settings
        .timer(TokioTimer::new())
        .header_read_timeout(limits.headers)
        .max_buf_size(BUFFER);
    settings
}

impl Slot {
    /// Waits for the stop request, and then, if the connection is new, for its first request or
    /// until it has the given age.
    async fn stopped(&self, stop: &CancellationToken, age: Duration) {
        stop.cancelled().await;
        let mut usage = self.usage.subscribe();
        let Usage::New { since } = *usage.borrow() else {
            // The runtime looks for bytes that have arrived.
            return task::yield_now().await;
        };
        let first_request = usage.wait_for(|usage| !matches!(usage, Usage::New { .. }));
        _ = tokio::time::timeout_at(since + age, first_request).await;
    }

    fn received_request(&self, is_known: bool) {
        if is_known {
            return self.begin_request();
        }
        self.usage.send_replace(Usage::Admitting { since: Instant::now() });
    }

    /// Protects the connection until the request is answered.
    fn begin_request(&self) {
        self.usage.send_replace(Usage::Active);
    }

    fn answered_request(&self, idle: &Notify) {
        self.usage.send_replace(Usage::Unused { since: Instant::now() });
        idle.notify_one();
    }
}
