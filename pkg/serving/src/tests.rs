//! Runs a real server on a free port of 127.0.0.1 with a client that writes HTTP by hand, so that
//! tests can send incomplete requests.

mod access;
mod attacks;
mod limits;
mod reload;
mod responses;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use futures::FutureExt;
use futures::future::{BoxFuture, pending, ready};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use portreeve_metrics::Registry;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::connection::Limits;
use crate::tls::Identity;
use crate::{
    AccessControl, AccessError, Args, Check, Decision, Error, HealthChecker, HealthCheckers, HttpEndpoints, Metrics,
    Server, User,
};

/// Access control without an apiserver. The header `Authorization` is the user's name: `admin` may
/// do everything, and `reader` may read /metrics. `stranger` has bad credentials, nobody can decide
/// on `undecided`, and the apiserver does not answer about `waiting`, nor about `known`, whom it
/// has accepted before.
pub(crate) struct NamedUsers;

impl AccessControl for NamedUsers {
    fn is_known(&self, headers: &HeaderMap) -> bool {
        headers.get(AUTHORIZATION).is_some_and(|name| name == "known")
    }

    fn authenticate<'a>(
        &'a self,
        _: &'a [CertificateDer<'static>],
        headers: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<User, AccessError>> {
        let name = headers.get(AUTHORIZATION).and_then(|name| name.to_str().ok());
        let user = match name {
            None => Ok(User::anonymous()),
            Some("waiting" | "known") => return pending().boxed(),
            Some("stranger") => Err(AccessError::new("the bearer token is invalid")),
            Some(name) => Ok(User {
                name: name.to_owned(),
                ..User::default()
            }),
        };
        ready(user).boxed()
    }

    fn authorize<'a>(
        &'a self,
        user: &'a User,
        verb: &'a str,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Decision, AccessError>> {
        ready(match (&*user.name, verb, path) {
            ("admin", ..) | ("reader", "get", "/metrics") => Ok(Decision::Allowed),
            ("undecided", ..) => Err(AccessError::new("no answer")),
            ("refused", ..) => Ok(Decision::Denied("it is Sunday".to_owned())),
            _ => Ok(Decision::Denied(String::new())),
        })
        .boxed()
    }

    fn maintain(&self) -> BoxFuture<'_, String> {
        pending().boxed()
    }
}

/// Waits for a future that should complete immediately. Only a failing test waits for the timeout.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what)
        .await
        .expect("timed out")
}

fn checker(checks: Vec<Check>) -> HealthChecker {
    Arc::new(move || checks.clone())
}

fn endpoints() -> HttpEndpoints {
    let passing = checker(vec![Check::ok("workers")]);
    let health = HealthCheckers {
        livez: passing.clone(),
        readyz: passing.clone(),
        healthz: passing,
    };
    HttpEndpoints {
        access: Arc::new(NamedUsers),
        health,
        metrics: Metrics::register(&Registry::new()).unwrap(),
        extra_routes: Router::new(),
    }
}

/// Returns flags that allow these paths without authorization.
fn allow_paths(paths: &str) -> Args {
    Args {
        authorization_always_allow_paths: vec![paths.parse().unwrap()],
        ..Args::default()
    }
}

/// A route `/wait` that signals the arrival of a request and responds when it is released.
struct Gate {
    started: mpsc::Receiver<()>,
    release: Arc<Semaphore>,
}

impl Gate {
    fn new() -> (Self, Router) {
        let (tx, started) = mpsc::channel(16);
        let release = Arc::new(Semaphore::new(0));
        let gate = Arc::clone(&release);
        let wait = async move || {
            tx.send(()).await.unwrap();
            gate.acquire().await.unwrap().forget();
            "waited"
        };
        (Self { started, release }, Router::new().route("/wait", get(wait)))
    }
}

struct Running {
    address: SocketAddr,
    certificate: CertificateDer<'static>,
    stop: CancellationToken,
    task: JoinSet<Result<(), Error>>,
}

impl Running {
    fn start(args: &Args, limits: Limits, endpoints: HttpEndpoints) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(listener, Identity::new(&args.tls_settings()).unwrap(), args).unwrap();
        let (address, certificate) = (server.local_addr(), server.certificate().clone());
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(server.with_limits(limits).serve(endpoints, stop.clone()));
        Self {
            address,
            certificate,
            stop,
            task,
        }
    }

    fn with(endpoints: HttpEndpoints) -> Self {
        Self::start(&allow_paths("/*"), Limits::default(), endpoints)
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        self.connect_trusting(self.certificate.clone()).await.unwrap()
    }

    /// Connects with a client that trusts only this certificate.
    async fn connect_trusting(&self, certificate: CertificateDer<'static>) -> io::Result<TlsStream<TcpStream>> {
        let stream = soon(TcpStream::connect(self.address)).await.unwrap();
        Self::handshake(stream, certificate).await
    }

    /// Does the TLS handshake as a client that trusts only this certificate.
    async fn handshake(stream: TcpStream, certificate: CertificateDer<'static>) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        soon(TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }

    async fn request(&self, method: &str, path: &str) -> Reply {
        self.request_with(method, path, "").await
    }

    /// Sends a request with these header lines, each of which ends with a line break.
    async fn request_with(&self, method: &str, path: &str, headers: &str) -> Reply {
        let mut stream = self.connect().await;
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n");
        soon(stream.write_all(head.as_bytes())).await.unwrap();
        Reply::read(stream).await
    }

    async fn get(&self, path: &str) -> Reply {
        self.request("GET", path).await
    }

    /// Waits until `serve` has returned, and returns its result.
    async fn stopped(&mut self) -> Result<(), Error> {
        soon(self.task.join_next()).await.unwrap().unwrap()
    }
}

struct Reply {
    head: String,
    body: String,
}

impl Reply {
    async fn read(mut stream: TlsStream<TcpStream>) -> Self {
        let mut text = String::new();
        soon(stream.read_to_string(&mut text)).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Self {
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    /// Returns status and body as text, for expectations.
    fn show(&self) -> String {
        format!("{} {}", self.status(), self.body)
    }
}
