//! The stations that each request passes, as one tower service.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use kube::{
    client::Body,
    core::{Status, response::StatusDetails},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{BoxError, Service};

use crate::{
    Fence, Metrics,
    body::{CutOff, TimedBody},
    rate::Bucket,
};

/// The largest refusal that is read. A real one has a few hundred bytes.
const LARGEST_REFUSAL: usize = 64 << 10;
/// How many characters of a refusal that is no Status are kept. It ends up in logs and reports.
const LONGEST_TEXT: usize = 300;

/// What all calls of a process share.
pub(crate) struct Shared {
    pub(crate) fence: Arc<dyn Fence>,
    pub(crate) limiter: Option<Mutex<Bucket>>,
    pub(crate) metrics: Metrics,
    /// How long a call may take, body included.
    pub(crate) limit: Duration,
    /// `host:port` of the apiserver, for labels. Nothing else of its URL, which may hold a password.
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
        let limit = (started + self.limit, CutOff::TimedOut(self.limit));
        // Last, so that nothing stands between the fence's word and the wire.
        let fenced_at = if mutates(&method) { self.fence.admit()? } else { None };
        let (until, reason) = fenced_at
            .filter(|at| *at < limit.0)
            .map_or(limit, |at| (at, CutOff::FenceClosed));
        if let Some(size) = request.body().size_hint().exact() {
            #[expect(clippy::cast_precision_loss, reason = "a histogram's sum is a float")]
            self.metrics
                .request_sizes
                .with_label_values(&[method.as_str(), &self.host])
                .observe(size as f64);
        }
        let answer = match tokio::time::timeout_at(until, inner.call(request)).await {
            Ok(answer) => answer.map_err(Into::into),
            Err(_) => Err(reason.into()),
        };
        self.record(&method, started, answer.as_ref().ok().map(Response::status));
        let sizes = self
            .metrics
            .response_sizes
            .with_label_values(&[method.as_str(), &self.host]);
        let answer = answer?;
        // Only an open watch goes on; one that is refused ends like any other call.
        let open_watch = watch && answer.status().is_success();
        let deadline = (!open_watch).then_some((until, reason));
        let answer = answer.map(|body| TimedBody::new(body, deadline, sizes));
        if answer.status().is_client_error() || answer.status().is_server_error() {
            with_status(answer).await.map(|answer| answer.map(Either::Right))
        } else {
            Ok(answer.map(Either::Left))
        }
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

/// Makes the body of every refusal a Status with a code, and puts a `Retry-After` header into it, where [`crate::retry_after`] finds it.
///
/// Priority and fairness refuses with a header and plain text, an unknown path with plain text, a proxy with whatever it likes. kube's
/// client keeps neither header nor code of those, and logs their text.
async fn with_status<B>(answer: Response<TimedBody<B>>) -> Result<Response<Full<Bytes>>, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = answer.into_parts();
    let text = match Limited::new(body, LARGEST_REFUSAL).collect().await {
        Ok(text) => text.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => Bytes::from_static(b"(a refusal that is too long to read)"),
        Err(error) => return Err(error),
    };
    let mut status = serde_json::from_slice(&text)
        .ok()
        .filter(|status: &Status| status.code != 0 || !status.reason.is_empty())
        .unwrap_or_else(|| Status {
            message: String::from_utf8_lossy(&text)
                .trim()
                .chars()
                .take(LONGEST_TEXT)
                .collect(),
            reason: parts.status.canonical_reason().unwrap_or_default().replace(' ', ""),
            ..Status::default()
        });
    if status.code == 0 {
        status.code = parts.status.as_u16();
    }
    if let Some(seconds) = retry_after_header(&parts.headers) {
        let details = status.details.get_or_insert_with(|| StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        details.retry_after_seconds = seconds;
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    let json = HeaderValue::from_static("application/json");
    parts.headers.insert(header::CONTENT_TYPE, json);
    let body = serde_json::to_vec(&status)?;
    Ok(Response::from_parts(parts, Full::from(body)))
}

/// In seconds, as the apiserver writes it; the form with a date is not understood.
fn retry_after_header(headers: &HeaderMap) -> Option<u32> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
