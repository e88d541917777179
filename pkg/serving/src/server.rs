//! The listener, which is bound at startup and serves until it is stopped.
//!
//! Binding and serving are separate, so that a port in use or a bad certificate fails the daemon's
//! startup with a clear error before anything else has started.
//!
//! Architecture Invariant: a single loop accepts connections, and [`Server::serve`] returns only
//! after the tasks of all connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::connection::{Connections, Limits, Shared};
use crate::endpoints::{RequestHandler, Service};
use crate::reload::reload_certificate;
use crate::tls::{self, Identity};
use crate::{AllowedPaths, Args, CertificateSink};

/// The pause after a failed accept, for example because the process has no file descriptors left.
/// Without the pause, the loop would fail again immediately and use a whole core.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The number of connections that may wait to be accepted. With the standard library's 128, the
/// kernel drops further ones while a thousand clients connect at once, and they try again after a
/// second.
const BACKLOG: i32 = 1024;

/// An error that prevents serving HTTPS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate or its key cannot be used.
    #[error(transparent)]
    Certificate(#[from] tls::Error),
    /// The address is in use, does not belong to this machine, or is not permitted.
    #[error(
        "failed to listen on {address}: choose a free port with {port_flag} (0 disables the listener) and an address of this machine with --bind-address"
    )]
    Listen {
        /// The flag of the port.
        port_flag: &'static str,
        /// The address from `--bind-address` and the flag.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A port of 127.0.0.1 is in use or is not permitted.
    #[error("failed to listen on 127.0.0.1:{port}: choose a free port with --port, or 0 for any free one")]
    ListenOnLoopback {
        /// The port.
        port: u16,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The listening socket that the caller passed in cannot be used.
    #[error("failed to use the listening socket")]
    Socket {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The serving thread cannot be started.
    #[error("failed to start the thread that serves HTTPS")]
    Thread {
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Requests cannot be authenticated or authorized.
    #[error("failed to set up authentication and authorization: {reason}")]
    Access {
        /// The reason that the access control gives.
        reason: String,
    },
    /// The serving thread ended unexpectedly.
    #[error("the thread that serves HTTPS ended unexpectedly")]
    ThreadExited,
}

/// The limits of a port for other clients than probes and scrapers.
#[derive(Clone, Copy, Debug)]
pub struct PortLimits {
    /// The maximum number of open connections.
    pub connections: usize,
    /// How long a connection may be unused. It must exceed the time after which the clients close
    /// an unused connection, because otherwise a request can be lost that a client sends while the
    /// server closes the connection.
    pub idle: Duration,
    /// How long a response may wait for its client, whose memory it takes.
    pub response: Duration,
}

/// A bound listener with its certificate. Clients can connect immediately and wait until
/// [`serve`](Self::serve) runs.
#[derive(Debug)]
pub struct Server {
    /// The name in log lines.
    pub(crate) name: &'static str,
    listener: TcpListener,
    address: SocketAddr,
    identity: Identity,
    sink: CertificateSink,
    allowed: AllowedPaths,
    limits: Limits,
}

impl Server {
    /// Binds the address of the flags. Returns `None` when `--secure-port=0`.
    ///
    /// # Errors
    ///
    /// Returns an error when the certificate cannot be used or the address cannot be bound.
    pub fn bind(args: &Args) -> Result<Option<Self>, Error> {
        let Some(address) = args.address() else { return Ok(None) };
        Self::bind_address(address, "--secure-port", args).map(Some)
    }

    /// Binds another port, with the same address and certificates, for other clients: everybody may
    /// use the paths in `allowed`, within the limits. Returns `None` when the port is 0.
    ///
    /// # Errors
    ///
    /// Returns an error when the certificate cannot be used or the address cannot be bound.
    /// `port_flag` names the port in the latter.
    pub fn bind_port(
        port: u16,
        port_flag: &'static str,
        allowed: AllowedPaths,
        limits: PortLimits,
        args: &Args,
    ) -> Result<Option<Self>, Error> {
        if port == 0 {
            return Ok(None);
        }
        let address = SocketAddr::new(args.bind_address, port);
        let mut server = Self::bind_address(address, port_flag, args)?;
        server.allowed = allowed;
        server.limits.connections = limits.connections;
        server.limits.headers = limits.idle;
        server.limits.response = limits.response;
        Ok(Some(server))
    }

    /// Binds a port of 127.0.0.1, or any free one if the port is 0, with the certificates of the
    /// flags.
    ///
    /// # Errors
    ///
    /// Returns an error when the certificate cannot be used or the port cannot be bound.
    pub fn bind_loopback(port: u16, args: &Args) -> Result<Self, Error> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Self::bind_address(address, "--port", args).map_err(|error| match error {
            Error::Listen { source, .. } => Error::ListenOnLoopback { port, source },
            other => other,
        })
    }

    fn bind_address(address: SocketAddr, port_flag: &'static str, args: &Args) -> Result<Self, Error> {
        // The certificate is checked before the port is bound.
        let identity = Identity::new(&args.tls_settings())?;
        let listen = |source| Error::Listen {
            port_flag,
            address,
            source,
        };
        let listener = TcpListener::bind(address).map_err(listen)?;
        rustix::net::listen(&listener, BACKLOG).map_err(|source| listen(source.into()))?;
        Self::new(listener, identity, args)
    }

    /// Uses a socket that is already listening.
    pub(crate) fn new(listener: TcpListener, identity: Identity, args: &Args) -> Result<Self, Error> {
        let address = listener.local_addr().map_err(|source| Error::Socket { source })?;
        listener
            .set_nonblocking(true)
            .map_err(|source| Error::Socket { source })?;
        Ok(Self {
            name: "secure",
            listener,
            address,
            identity,
            sink: CertificateSink::new(),
            allowed: args.allowed_paths(),
            limits: Limits::default(),
        })
    }

    /// Replaces the limits.
    #[cfg(test)]
    pub(crate) fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the address that clients can connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the server's certificate, for clients that must trust a self-signed one.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.identity.certificate
    }

    /// Returns a handle that replaces the certificate, also while the server serves.
    pub fn certificate_sink(&self) -> CertificateSink {
        self.sink.clone()
    }

    /// Replaces the certificate together with that of another server.
    pub fn follow_certificate(&mut self, sink: &CertificateSink) {
        self.sink = sink.clone();
    }

    /// Serves until `stop` is cancelled, then stops listening, waits for requests in progress and
    /// for the first requests of new connections (for at most 5 s), and joins every task.
    ///
    /// # Errors
    ///
    /// Returns an error when the current runtime has no I/O driver, or when access control ends.
    pub async fn serve(self, service: impl Into<Service>, stop: CancellationToken) -> Result<(), Error> {
        let Self {
            name,
            listener,
            address,
            identity,
            sink,
            allowed,
            limits,
        } = self;
        let Service {
            access: control,
            routes,
            metrics,
        } = service.into();
        metrics.use_certificate(&identity);
        let access = Access::new(allowed, Arc::clone(&control));
        let handler = RequestHandler::new(routes, access, limits.request);
        let listener = tokio::net::TcpListener::from_std(listener).map_err(|source| Error::Socket { source })?;
        let Identity { config, loaded, .. } = identity;
        let config = watch::Sender::new(config);
        let mut connections = Connections::new(Shared {
            handler,
            config: config.subscribe(),
            limits,
            stop: stop.clone(),
        });

        tracing::info!(listener = name, %address, "serving HTTPS");
        let accepting = async {
            loop {
                let (stream, peer) = tokio::select! {
                    accepted = accept(&listener) => accepted,
                    () = connections.reap() => continue,
                };
                connections.make_room().await;
                connections.open(stream, peer);
            }
        };
        let reloading = reload_certificate(name, loaded, &sink, &config, &metrics);
        let result = tokio::select! {
            () = stop.cancelled() => Ok(()),
            () = accepting => Ok(()),
            never = reloading => match never {},
            reason = control.maintain() => Err(Error::Access { reason }),
        };
        open_waiting(listener, &mut connections);
        stop.cancel();
        connections.drain().await;
        tracing::info!(listener = name, %address, "stopped serving HTTPS");
        result
    }
}

/// Opens the connections that were established but not accepted, as far as there are slots, and
/// stops listening. Their clients would get a reset otherwise.
fn open_waiting(listener: tokio::net::TcpListener, connections: &mut Connections) {
    let Ok(listener) = listener.into_std() else { return };
    while connections.has_room() {
        let Ok((stream, peer)) = listener.accept() else { return };
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        if let Ok(stream) = stream {
            connections.open(stream, peer);
        }
    }
}

/// Returns the next connection. Failed attempts are logged and retried.
async fn accept(listener: &tokio::net::TcpListener) -> (TcpStream, SocketAddr) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // The client disconnected before the accept, which is not an error of the server.
            Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) => {}
            Err(error) => {
                tracing::error!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
