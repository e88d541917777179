//! A webhook that answers as the test chooses, also wrongly.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::authority::Authority;
use crate::proxy::acceptor;

/// Returns the body of the response to a body, or `None` for the status 500.
type Respond = dyn Fn(Value) -> Option<Value> + Send + Sync;

/// An HTTPS server for the calls of an apiserver. Dropping it closes all its connections.
///
/// Its tasks run on the runtime on which it was started.
pub struct WebhookServer {
    url: String,
    requests: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl WebhookServer {
    /// Starts a server with a certificate of `authority`.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen, or cannot use the certificate.
    pub async fn start(
        authority: &Authority,
        respond: impl Fn(Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Result<Self> {
        Self::start_with(authority, Some(Arc::new(respond))).await
    }

    /// Starts a server that accepts connections and never answers a request.
    ///
    /// # Errors
    /// Returns an error if the server cannot listen, or cannot use the certificate.
    pub async fn silent(authority: &Authority) -> Result<Self> {
        Self::start_with(authority, None).await
    }

    async fn start_with(authority: &Authority, respond: Option<Arc<Respond>>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("failed to listen on 127.0.0.1")?;
        let port = listener
            .local_addr()
            .context("failed to read the webhook's port")?
            .port();
        let acceptor = acceptor(&authority.server_certificate()?)?;
        let requests = Arc::<AtomicU64>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, acceptor, respond, Arc::clone(&requests)));
        Ok(Self {
            url: format!("https://localhost:{port}/"),
            requests,
            _tasks: tasks,
        })
    }

    /// Returns its URL. Every path is answered alike.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns how many requests it has received.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Accepts clients. Dropping this future ends their connections.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, respond: Option<Arc<Respond>>, requests: Arc<AtomicU64>) {
    let mut open = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (acceptor, respond, requests) = (acceptor.clone(), respond.clone(), Arc::clone(&requests));
        open.spawn(async move {
            let Ok(client) = acceptor.accept(client).await else {
                return;
            };
            let service = service_fn(|request| {
                requests.fetch_add(1, Ordering::Relaxed);
                answer(request, respond.as_deref())
            });
            // A client that disconnects is no failure of the test.
            drop(
                http1::Builder::new()
                    .serve_connection(TokioIo::new(client), service)
                    .await,
            );
        });
    }
}

async fn answer(request: Request<Incoming>, respond: Option<&Respond>) -> Result<Response<Full<Bytes>>, Infallible> {
    let Some(respond) = respond else {
        return std::future::pending().await;
    };
    let body = request.into_body().collect().await.ok();
    let review = body.and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
    let Some(answer) = review.and_then(respond) else {
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return Ok(response);
    };
    let mut response = Response::new(Full::from(answer.to_string()));
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}
