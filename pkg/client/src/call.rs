//! The stations that each request passes, as one tower service.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Either, Full, Limited};
use kube::{
    client::Body,
    core::{Status, response::StatusDetails},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::{
    Fence, Metrics,
    body::{TimedBody, TimedOut},
    rate::Bucket,
};

/// The largest refusal that is read to add a `Retry-After` to it. A real one has a few hundred bytes.
const LARGEST_REFUSAL: usize = 64 << 10;

/// What all calls of a process share.
pub(crate) struct Shared {
    pub(crate) fence: Arc<dyn Fence>,
    pub(crate) limiter: Option<Mutex<Bucket>>,
    pub(crate) metrics: Metrics,
    /// How long a call may take, body included.
    pub(crate) limit: Duration,
    /// `host:port` of the apiserver, for labels.
    pub(crate) host: String,
}

/// A component's view of the shared service: its user agent, and the stations.
#[derive(Clone)]
pub(crate) struct Calls<S> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<Shared>,
    pub(crate) user_agent: HeaderValue,
}

type Answered<B> = Response<Either<TimedBody<B>, Full<Bytes>>>;

impl<S, B> Service<Request<Body>> for Calls<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Answered<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The service that was polled ready must be the one that is called.
        let ready = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, ready);
        let shared = Arc::clone(&self.shared);
        request
            .headers_mut()
            .insert(header::USER_AGENT, self.user_agent.clone());
        Box::pin(async move { shared.perform(&mut inner, request).await })
    }
}

impl Shared {
    async fn perform<S, B>(&self, inner: &mut S, request: Request<Body>) -> Result<Answered<B>, BoxError>
    where
        S: Service<Request<Body>, Response = Response<B>>,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let method = request.method().clone();
        let watch = is_watch(request.uri());
        self.wait_for_token(&method).await;
        let started = Instant::now();
        let deadline = started + self.limit;
        // Last, so that nothing stands between the fence's word and the wire.
        let fenced_at = if mutates(&method) { self.fence.admit()? } else { None };
        if let Some(size) = request.body().size_hint().exact() {
            #[expect(clippy::cast_precision_loss, reason = "a histogram's sum is a float")]
            self.metrics
                .request_sizes
                .with_label_values(&[method.as_str(), &self.host])
                .observe(size as f64);
        }
        let until = fenced_at.map_or(deadline, |at| at.min(deadline));
        let answer = match tokio::time::timeout_at(until, inner.call(request)).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(TimedOut { limit: self.limit }.into()),
        };
        self.record(&method, started, answer.as_ref().ok().map(Response::status));
        let sizes = self
            .metrics
            .response_sizes
            .with_label_values(&[method.as_str(), &self.host]);
        let deadline = (!watch).then_some((until, self.limit));
        let answer = answer?.map(|body| TimedBody::new(body, deadline, sizes));
        with_retry_after(answer).await
    }

    async fn wait_for_token(&self, method: &Method) {
        let Some(limiter) = &self.limiter else { return };
        let wait = limiter.lock().take(Instant::now());
        self.metrics
            .limiter_durations
            .with_label_values(&[method.as_str(), &self.host])
            .observe(wait.as_secs_f64());
        tokio::time::sleep(wait).await;
    }

    /// An error without an answer counts as code `<error>`, as in client-go.
    fn record(&self, method: &Method, started: Instant, status: Option<StatusCode>) {
        let code = status.as_ref().map_or("<error>", StatusCode::as_str);
        self.metrics
            .requests
            .with_label_values(&[code, method.as_str(), &self.host])
            .inc();
        self.metrics
            .durations
            .with_label_values(&[method.as_str(), &self.host])
            .observe(started.elapsed().as_secs_f64());
    }
}

fn mutates(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

fn is_watch(uri: &http::Uri) -> bool {
    let parameters = uri.query().unwrap_or_default().split('&');
    parameters
        .into_iter()
        .any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}

/// Moves a `Retry-After` header into the body's Status, where [`crate::retry_after`] finds it.
///
/// Priority and fairness refuses with a header and plain text; kube's client keeps neither.
async fn with_retry_after<B>(answer: Response<TimedBody<B>>) -> Result<Answered<B>, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let seconds: Option<u32> = answer
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.parse().ok());
    let (Some(seconds), false) = (seconds, answer.status().is_success()) else {
        return Ok(answer.map(Either::Left));
    };
    let (mut parts, body) = answer.into_parts();
    let text = Limited::new(body, LARGEST_REFUSAL).collect().await?.to_bytes();
    let mut status = serde_json::from_slice(&text).unwrap_or_else(|_| Status {
        code: parts.status.as_u16(),
        message: String::from_utf8_lossy(&text).trim().to_owned(),
        reason: parts.status.canonical_reason().unwrap_or_default().replace(' ', ""),
        ..Status::default()
    });
    let details = status.details.get_or_insert_with(|| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    });
    details.retry_after_seconds = seconds;
    parts.headers.remove(header::CONTENT_LENGTH);
    let body = serde_json::to_vec(&status)?;
    Ok(Response::from_parts(parts, Either::Right(Full::from(body))))
}

#[cfg(test)]
mod tests;
