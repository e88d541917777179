//! Tests of the middleware between a `kube::Client` and a scripted service. They check the exact
//! requests without a server.

mod limits;
mod metrics;
mod outages;
mod quiet;

use std::convert::Infallible;

use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams},
};
use parking_lot::Mutex;
use portreeve_metrics::Registry;
use serde_json::json;
use tower::service_fn;

use super::*;
use crate::{AlwaysOpen, ApiErrorKind, Fenced, refusal::MAX_ERROR_BODY, retry_after};

type ScriptedBody = UnsyncBoxBody<Bytes, BoxError>;

/// The middleware of one process.
struct TestStack {
    registry: Registry,
    shared: CallContext,
}

fn test_stack() -> TestStack {
    let registry = Registry::new();
    let shared = CallContext {
        fence: Arc::new(AlwaysOpen),
        limiter: None,
        metrics: Metrics::register(&registry).unwrap(),
        outage: Outage::default(),
        server_clock: ServerClock::default(),
        limit: Duration::from_secs(30),
        host: "apiserver:6443".to_owned(),
    };
    TestStack { registry, shared }
}

impl TestStack {
    fn fence(mut self, fence: impl Fence) -> Self {
        self.shared.fence = Arc::new(fence);
        self
    }

    fn rate(mut self, qps: f32, burst: u32) -> Self {
        self.shared.limiter = RateLimiter::new(qps, burst).map(Arc::new);
        self
    }

    /// Returns a client that sends its requests to `response`.
    fn client<F, A>(self, response: F) -> Client
    where
        F: Fn(Request<Body>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Result<Response<ScriptedBody>, BoxError>> + Send + 'static,
    {
        let calls = ApiService {
            inner: service_fn(response),
            shared: Arc::new(self.shared),
            user_agent: HeaderValue::from_static("portreeve/0.1.0 (linux/amd64) foo-controller"),
        };
        Client::new(calls, "default")
    }

    /// Returns a client that gets this response to every request, and the recorded requests.
    fn responding(self, code: u16, body: &str) -> (Client, Requests) {
        let requests = Requests::default();
        let (received, body) = (requests.clone(), body.to_owned());
        let client = self.client(move |request| {
            received.0.lock().push(request);
            let response = response(code, &body);
            async { Ok(response) }
        });
        (client, requests)
    }
}

/// The requests that the scripted service received.
#[derive(Clone, Default)]
struct Requests(Arc<Mutex<Vec<Request<Body>>>>);

impl Requests {
    fn methods(&self) -> Vec<String> {
        self.0
            .lock()
            .iter()
            .map(|request| request.method().to_string())
            .collect()
    }
}

fn response(code: u16, body: &str) -> Response<ScriptedBody> {
    let body = Full::from(body.to_owned()).map_err(|never: Infallible| match never {});
    Response::builder().status(code).body(body.boxed_unsync()).unwrap()
}

/// Returns a response whose body starts with `start` and then stalls.
fn stalled_response(start: &str) -> Response<ScriptedBody> {
    use futures::StreamExt;
    let start = Ok(Frame::data(Bytes::from(start.to_owned())));
    let frames = futures::stream::iter([start]).chain(futures::stream::pending());
    Response::new(StreamBody::new(frames).boxed_unsync())
}

fn config_maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

fn config_map() -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap()
}

/// A fence that admits nothing, or everything until a given time, and counts its checks.
#[derive(Clone)]
struct Gate {
    admits: Arc<Mutex<Result<Option<Instant>, Fenced>>>,
    checks: Arc<Mutex<u32>>,
}

fn gate(admits: Result<Option<Duration>, Fenced>) -> Gate {
    let gate = Gate {
        admits: Arc::new(Mutex::new(Ok(None))),
        checks: Arc::default(),
    };
    gate.set(admits);
    gate
}

impl Gate {
    fn set(&self, admits: Result<Option<Duration>, Fenced>) {
        *self.admits.lock() = admits.map(|time| time.map(|time| Instant::now() + time));
    }
}

impl Fence for Gate {
    fn admit(&self) -> Result<Option<Instant>, Fenced> {
        *self.checks.lock() += 1;
        *self.admits.lock()
    }
}

#[tokio::test]
async fn fence_is_checked_only_for_mutating_requests() {
    let fence = gate(Ok(None));
    let body = json!({"metadata": {"name": "a"}, "items": []}).to_string();
    let (client, requests) = test_stack().fence(fence.clone()).responding(200, &body);
    let api = config_maps(client);
    api.get("a").await.unwrap();
    api.list(&ListParams::default()).await.unwrap();
    api.watch(&WatchParams::default(), "0").await.map(drop).unwrap();
    assert_eq!(*fence.checks.lock(), 0);
    api.create(&PostParams::default(), &config_map()).await.unwrap();
    api.replace("a", &PostParams::default(), &config_map()).await.unwrap();
    let patch = Patch::Merge(json!({"data": {}}));
    api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(*fence.checks.lock(), 4);
    assert_eq!(
        requests.methods(),
        ["GET", "GET", "GET", "POST", "PUT", "PATCH", "DELETE"]
    );
}

#[tokio::test]
async fn fenced_write_is_not_sent_and_returns_an_error() {
    let (client, requests) = test_stack()
        .fence(gate(Err(Fenced("not the leader"))))
        .responding(201, "{}");
    let error = config_maps(client)
        .create(&PostParams::default(), &config_map())
        .await
        .unwrap_err();
    assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Fenced);
    assert!(error.to_string().contains("not sent: not the leader"), "{error}");
    assert!(requests.methods().is_empty());
}

#[tokio::test]
async fn post_is_sent_once_for_every_response_code() {
    for code in [201, 409, 422, 429, 500, 502, 503, 504] {
        let (client, requests) = test_stack().responding(code, "{}");
        let _ = config_maps(client).create(&PostParams::default(), &config_map()).await;
        assert_eq!(requests.methods(), ["POST"], "{code}");
    }
}

#[tokio::test]
async fn retry_after_is_read_from_the_header_of_a_plain_text_error() {
    let client = test_stack().client(|_| async {
        let mut response = response(429, "Too many requests, please try again later.\n");
        let seconds = HeaderValue::from_static("7");
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
        Ok(response)
    });
    let error = config_maps(client).get("a").await.unwrap_err();
    assert_eq!(retry_after(&error), Some(Duration::from_secs(7)));
    assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Transient);
    assert_eq!(
        crate::error_chain(&error),
        "Too many requests, please try again later. (TooManyRequests)"
    );
}

#[tokio::test]
async fn retry_after_is_capped() {
    let status = json!({"kind": "Status", "status": "Failure", "code": 503, "reason": "ServiceUnavailable",
                        "message": "maintenance", "details": {"retryAfterSeconds": 86400}});
    let (client, _) = test_stack().responding(503, &status.to_string());
    let error = config_maps(client).get("a").await.unwrap_err();
    assert_eq!(retry_after(&error), Some(Duration::from_mins(5)));
}

#[tokio::test]
async fn oversized_error_response_is_not_read_to_its_end() {
    let (client, _) = test_stack().responding(503, &"x".repeat(MAX_ERROR_BODY + 1));
    let error = config_maps(client).get("a").await.unwrap_err();
    assert!(error.to_string().contains("too long to read"), "{error}");
}
