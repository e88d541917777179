//! The middleware that every request passes, as one tower service.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::{Either, Full};
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use jiff::Timestamp;
use kube::client::Body;
use prometheus::Histogram;
use tokio::time::{Instant, sleep_until};
use tower::{BoxError, Service};

use crate::{
    Fence, Metrics, Outage, ServerClock, TimeLimit,
    api_error_kind::is_connection_error,
    body::{CallAborted, CallMetrics, TimedBody},
    outage::RequestResult,
    rate::RateLimiter,
    refusal,
};

/// The state that all calls behind one fence share.
#[derive(Clone)]
pub(crate) struct CallContext {
    pub(crate) fence: Arc<dyn Fence>,
    pub(crate) limiter: Option<Arc<RateLimiter>>,
    pub(crate) metrics: Metrics,
    pub(crate) outage: Outage,
    pub(crate) server_clock: ServerClock,
    /// The time limit of a call on its connection, including its body, and of the wait for the
    /// connection.
    pub(crate) limit: Duration,
    /// `host:port` of the apiserver, for metric labels. The rest of the URL may contain a password
    /// and is left out.
    pub(crate) host: String,
}

/// The shared service with the user agent of one component.
#[derive(Clone)]
pub(crate) struct ApiService<S> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<CallContext>,
    pub(crate) user_agent: HeaderValue,
}

type ApiResponse<B> = Response<Either<TimedBody<B>, Full<Bytes>>>;

impl<S, B> Service<Request<Body>> for ApiService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = ApiResponse<B>;
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

impl CallContext {
    async fn perform<S, B>(&self, inner: &mut S, mut request: Request<Body>) -> Result<ApiResponse<B>, BoxError>
    where
        S: Service<Request<Body>, Response = Response<B>>,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let method = request.method().clone();
        let watch = is_watch(request.uri());
        let started = Instant::now();
        self.wait_for_token(&method).await;
        // The fence is checked as late as possible. `inner.call` may still refresh credentials,
        // resolve the apiserver's name and open a TLS connection. The deadline below covers all of
        // that.
        let fence_deadline = if mutates(&method) { self.fence.admit()? } else { None };
        if let Some(size) = request.body().size_hint().exact() {
            #[expect(clippy::cast_precision_loss, reason = "a histogram's sum is a float")]
            self.metrics
                .request_sizes
                .with_label_values(&[method.as_str(), &self.host])
                .observe(size as f64);
        }
        let connected = capture_connection(&mut request);
        let shorter = request.extensions().get::<TimeLimit>();
        let call_limit = shorter.map_or(self.limit, |shorter| shorter.0.min(self.limit));
        let mut limit = Instant::now() + call_limit;
        let response = self
            .await_response(inner.call(request), connected, call_limit, &mut limit, fence_deadline)
            .await;
        self.count(&method, response.as_ref().ok().map(Response::status));
        if let Some(result) = request_result(&response) {
            self.outage.record(result);
        }
        let measured = CallMetrics {
            started,
            durations: self.durations(&method),
            sizes: self
                .metrics
                .response_sizes
                .with_label_values(&[method.as_str(), &self.host]),
        };
        let response = response.inspect_err(|_| measured.durations.observe(started.elapsed().as_secs_f64()))?;
        self.fence.observe(response.headers());
        self.server_clock.observe(response.headers(), Timestamp::now());
        if let Some(offset) = self.server_clock.offset() {
            self.metrics.clock_offset.set(offset.as_secs_f64());
        }
        // Only an open watch has no deadline. A watch that is rejected ends like any other call.
        let open_watch = watch && response.status().is_success();
        let deadline = (!open_watch).then_some((limit, CallAborted::TimedOut(call_limit)));
        let measured = (!open_watch).then_some(measured);
        let response = response.map(|body| TimedBody::new(body, deadline, measured));
        if response.status().is_client_error() || response.status().is_server_error() {
            refusal::with_status(response)
                .await
                .map(|response| response.map(Either::Right))
        } else {
            Ok(response.map(Either::Left))
        }
    }

    /// Waits for a response until `limit`. The limit restarts when the request gets a connection,
    /// because on a slow network dial and request together may take longer. A write is dropped
    /// earlier if the fence closes. Renewals of the Lease keep the fence open.
    ///
    /// The fence is checked before each poll of the request, and not only when a timer fires. A
    /// process that was stopped polls its tasks before its timers fire, and timers do not advance
    /// while the machine is suspended.
    async fn await_response<T, E: Into<BoxError>>(
        &self,
        response: impl Future<Output = Result<T, E>>,
        mut connected: CaptureConnection,
        call_limit: Duration,
        limit: &mut Instant,
        mut fence_deadline: Option<Instant>,
    ) -> Result<T, BoxError> {
        let mut is_connected = false;
        let is_fenced = fence_deadline.is_some();
        let mut response = pin!(response);
        let mut fenced_response = poll_fn(|cx| {
            if is_fenced && self.fence.admit().is_err() {
                return Poll::Ready(Err(CallAborted::FenceClosed.into()));
            }
            response.as_mut().poll(cx).map_err(Into::into)
        });
        loop {
            let until = fence_deadline.map_or(*limit, |fence_deadline| fence_deadline.min(*limit));
            tokio::select! {
                biased;
                response = &mut fenced_response => return response,
                _ = connected.wait_for_connection_metadata(), if !is_connected => {
                    is_connected = true;
                    *limit = Instant::now() + call_limit;
                    continue;
                }
                () = sleep_until(until) => {}
            }
            if Instant::now() >= *limit {
                let aborted = if is_connected {
                    CallAborted::TimedOut
                } else {
                    CallAborted::NotConnected
                };
                return Err(aborted(call_limit).into());
            }
            fence_deadline = match self.fence.admit() {
                Ok(later) if later.is_none_or(|later| later > until) => later,
                _ => return Err(CallAborted::FenceClosed.into()),
            };
        }
    }

    /// Waits for the rate limiter, if there is one.
    async fn wait_for_token(&self, method: &Method) {
        let Some(limiter) = &self.limiter else { return };
        let started = Instant::now();
        limiter.acquire().await;
        self.metrics
            .limiter_durations
            .with_label_values(&[method.as_str(), &self.host])
            .observe(started.elapsed().as_secs_f64());
    }

    /// Counts a request. An error without a response has the code `<error>`, as in client-go.
    fn count(&self, method: &Method, status: Option<StatusCode>) {
        let code = status.as_ref().map_or("<error>", StatusCode::as_str);
        self.metrics
            .requests
            .with_label_values(&[code, method.as_str(), &self.host])
            .inc();
    }

    fn durations(&self, method: &Method) -> Histogram {
        self.metrics.durations.with_label_values(&[method.as_str(), &self.host])
    }
}

/// Returns what the result of a request shows about the apiserver, or `None` if the request was not
/// sent.
fn request_result<B>(response: &Result<Response<B>, BoxError>) -> Option<RequestResult> {
    match response {
        Ok(response) if response.status().is_server_error() => Some(RequestResult::Unavailable),
        Ok(response) if response.status().is_client_error() => Some(RequestResult::Rejected),
        Ok(_) => Some(RequestResult::Success),
        Err(error) => is_connection_error(&**error).then_some(RequestResult::Unavailable),
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

#[cfg(test)]
mod tests;
