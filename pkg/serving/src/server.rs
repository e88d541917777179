//! The listener: bound at start, served until it is stopped.
//!
//! Binding and serving are apart so that a port in use or a bad certificate ends the daemon's start with a clear error,
//! before anything else has begun.
//!
//! Architecture Invariant: one place accepts, and [`Server::serve`] does not return before every connection's task has.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connections, Limits, Shared};
use crate::endpoints::RequestHandler;
use crate::tls::{self, Identity};
use crate::{AllowedPaths, Args, HttpEndpoints};

/// How long to wait after the kernel refused to hand over a connection, which it does when file descriptors run out:
/// the next call would fail at once, and again.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Why HTTPS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate or its key is at fault.
    #[error(transparent)]
    Certificate(#[from] tls::Error),
    /// The address is taken, not ours, or not allowed.
    #[error(
        "failed to listen on {address}: choose a free port with --secure-port (0 serves nothing) and an address of this machine with --bind-address"
    )]
    Listen {
        /// What --bind-address and --secure-port ask for.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The listening socket that was handed over is no good.
    #[error("failed to use the listening socket")]
    Socket {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no thread to serve on.
    #[error("failed to start the thread that serves HTTPS")]
    Thread {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The thread that serves ended before its time.
    #[error("the thread that serves HTTPS broke")]
    ThreadExited,
    /// The registry was served before, or somebody else registers metrics of these names.
    #[error(
        "failed to add the serving metrics to the registry: serve each registry once, and register no process collector of your own"
    )]
    RegisterMetrics {
        /// Why.
        #[source]
        source: prometheus::Error,
    },
}

/// A bound listener with its certificate. Clients can connect from now on and wait until [`serve`](Self::serve) runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    identity: Identity,
    allowed: AllowedPaths,
}

impl Server {
    /// Binds what the flags ask for; nothing when `--secure-port=0`.
    ///
    /// # Errors
    /// If the certificate cannot be used, or the address not be bound.
    pub fn bind(args: &Args) -> Result<Option<Self>, Error> {
        let Some(address) = args.address() else { return Ok(None) };
        // A port is not taken before the certificate is known to be good.
        let identity = Identity::from_args(args)?;
        let listener = TcpListener::bind(address).map_err(|source| Error::Listen { address, source })?;
        Self::new(listener, identity, args).map(Some)
    }

    /// Uses a socket that is listening already, for tests and for whoever hands sockets over; `--secure-port` and
    /// `--bind-address` do not count here.
    ///
    /// # Errors
    /// If the certificate or the socket cannot be used.
    pub fn from_listener(listener: TcpListener, args: &Args) -> Result<Self, Error> {
        Self::new(listener, Identity::from_args(args)?, args)
    }

    fn new(listener: TcpListener, identity: Identity, args: &Args) -> Result<Self, Error> {
        let address = listener.local_addr().map_err(|source| Error::Socket { source })?;
        listener
            .set_nonblocking(true)
            .map_err(|source| Error::Socket { source })?;
        Ok(Self {
            listener,
            address,
            identity,
            allowed: args.allowed_paths(),
        })
    }

    /// Where clients can connect.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The server's own certificate, for clients that are to trust a self-signed one.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.identity.certificate
    }

    /// Serves until `stop`, then stops listening, lets requests in work end (for at most 5 s) and joins every task.
    ///
    /// # Errors
    /// If the registry of the endpoints has been served before, or no runtime with IO runs this.
    pub async fn serve(self, endpoints: HttpEndpoints, stop: CancellationToken) -> Result<(), Error> {
        self.serve_within(Limits::default(), endpoints, stop).await
    }

    pub(crate) async fn serve_within(
        self,
        limits: Limits,
        endpoints: HttpEndpoints,
        stop: CancellationToken,
    ) -> Result<(), Error> {
        let Self {
            listener,
            address,
            identity,
            allowed,
        } = self;
        let handler = RequestHandler::new(endpoints, allowed, limits.request)
            .map_err(|source| Error::RegisterMetrics { source })?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(|source| Error::Socket { source })?;
        let acceptor = TlsAcceptor::from(identity.config);
        let mut connections = Connections::new(Shared {
            handler,
            acceptor,
            limits,
            stop: stop.clone(),
        });

        tracing::info!(%address, "serving HTTPS");
        loop {
            let (stream, peer) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accept(&listener) => accepted,
                () = connections.reap() => continue,
            };
            tokio::select! {
                () = stop.cancelled() => break,
                () = connections.make_room() => connections.open(stream, peer),
            }
        }
        drop(listener);
        connections.drain().await;
        tracing::info!(%address, "stopped serving HTTPS");
        Ok(())
    }
}

/// The next connection, however many fail before it.
async fn accept(listener: &tokio::net::TcpListener) -> (TcpStream, SocketAddr) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client was gone before we looked: nothing is wrong here.
            Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) => {}
            Err(error) => {
                tracing::error!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
