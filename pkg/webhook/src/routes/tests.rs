use std::{
    convert::Infallible,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use portreeve_metrics::Registry;
use portreeve_reconcile::{
    SystemClock,
    admission::{Review, Verdict},
};
use prometheus::TextEncoder;
use serde_json::json;
use tower::ServiceExt;

use super::*;

const THINGS: Resource = Resource::namespaced("example.dev", "v1", "Thing", "things");
const LIMITS: Resource = Resource::namespaced("example.dev", "v1", "Limit", "limits");
const PATH: &str = "/validate/things.example.dev";

struct Fixture {
    router: Router,
    registry: Registry,
    unready: Arc<AtomicBool>,
    /// The namespaces whose parameters were listed.
    listed: Arc<Mutex<Vec<String>>>,
}

/// Returns routes with one webhook, which panics for things named `panic`.
fn fixture() -> Fixture {
    let registry = Registry::new();
    let unready = Arc::new(AtomicBool::new(false));
    let listed = Arc::new(Mutex::new(Vec::new()));
    let (is_unready, namespaces) = (Arc::clone(&unready), Arc::clone(&listed));
    let webhook = Webhook::validating("things.example.dev", THINGS, |review: &Review<'_, Value>| {
        assert_ne!(review.new["metadata"]["name"], "panic");
        Verdict::new()
    });
    let routes = Routes {
        webhooks: vec![webhook.with_parameters(LIMITS)],
        parameters: Arc::new(move |resource, namespace| {
            assert_eq!(*resource, LIMITS);
            namespaces.lock().unwrap().push(namespace.to_owned());
            Some(Vec::new())
        }),
        readiness: Arc::new(move || is_unready.load(Ordering::SeqCst).then(|| "shutting down".to_owned())),
        metrics: Metrics::register(&registry).unwrap(),
        clock: Arc::new(SystemClock),
    };
    Fixture {
        router: routes.into_router(),
        registry,
        unready,
        listed,
    }
}

fn review(name: &str) -> Vec<u8> {
    let object = json!({"metadata": {"name": name}});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u1",
            "kind": {"group": "example.dev", "version": "v1", "kind": "Thing"},
            "resource": {"group": "example.dev", "version": "v1", "resource": "things"},
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {},
            "object": object,
            "oldObject": null,
        },
    });
    review.to_string().into_bytes()
}

fn post_to(path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    request.body(body.into()).unwrap()
}

impl Fixture {
    async fn send(&self, request: Request<Body>) -> (StatusCode, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn metric(&self, line: &str) -> bool {
        let text = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        text.lines().any(|found| found == line)
    }
}

#[tokio::test]
async fn a_review_is_answered_and_counted() {
    let fixture = fixture();
    let failures = format!("controller_runtime_webhook_requests_total{{code=\"500\",webhook=\"{PATH}\"}} 0");
    assert!(fixture.metric(&failures));
    let (status, body) = fixture.send(post_to(&format!("{PATH}?timeout=5s"), review("a"))).await;
    assert!(
        status == StatusCode::OK && body.contains(r#""allowed":true"#),
        "{status} {body}"
    );
    assert_eq!(*fixture.listed.lock().unwrap(), ["default"]);
    for line in [
        format!("controller_runtime_webhook_requests_total{{code=\"200\",webhook=\"{PATH}\"}} 1"),
        format!("controller_runtime_webhook_requests_in_flight{{webhook=\"{PATH}\"}} 0"),
        format!("controller_runtime_webhook_latency_seconds_count{{webhook=\"{PATH}\"}} 1"),
        format!("portreeve_webhook_decisions_total{{decision=\"allowed\",webhook=\"{PATH}\"}} 1"),
    ] {
        assert!(fixture.metric(&line), "{line}");
    }
}

#[tokio::test]
async fn invalid_requests_get_400_with_a_reason() {
    let fixture = fixture();
    let mut without_type = post_to(PATH, review("a"));
    without_type.headers_mut().remove(CONTENT_TYPE);
    let rows = [
        (without_type, "the Content-Type is not application/json\n"),
        (post_to(PATH, ""), "the body is no AdmissionReview: EOF"),
        (
            post_to(PATH, vec![b' '; crate::body::LARGEST + 1]),
            "the body is longer than 7340032 bytes\n",
        ),
    ];
    for (request, reason) in rows {
        let (status, body) = fixture.send(request).await;
        assert!(
            status == StatusCode::BAD_REQUEST && body.starts_with(reason),
            "{status} {body}"
        );
    }
    assert!(fixture.metric(&format!(
        "controller_runtime_webhook_requests_total{{code=\"400\",webhook=\"{PATH}\"}} 3"
    )));
    let (status, _) = fixture.send(post_to("/validate/others.example.dev", review("a"))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = fixture.send(Request::get(PATH).body(Body::empty()).unwrap()).await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn the_largest_body_is_read() {
    let fixture = fixture();
    let mut body = review("a");
    body.resize(crate::body::LARGEST, b' ');
    let (status, _) = fixture.send(post_to(PATH, body)).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_panic_is_a_failed_call() {
    let fixture = fixture();
    let (status, body) = fixture.send(post_to(PATH, review("panic"))).await;
    assert!(
        status == StatusCode::INTERNAL_SERVER_ERROR && body == "the webhook panicked\n",
        "{body}"
    );
    assert!(fixture.metric("controller_runtime_webhook_panics_total 1"));
    let (status, _) = fixture.send(post_to(PATH, review("a"))).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_ends_before_the_apiservers_time_limit() {
    let fixture = fixture();
    let never = futures::stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>();
    let began = Instant::now();
    let request = post_to(&format!("{PATH}?timeout=3s"), Body::new(StreamBody::new(never)));
    let (status, _) = fixture.send(request).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(began.elapsed(), Duration::from_millis(2700));
}

/// Bodies that wait for each other's memory would end by their time limit, all of them.
#[tokio::test(start_paused = true)]
async fn many_large_bodies_at_once_are_all_answered() {
    let fixture = fixture();
    let large = || {
        let mut body = review("a");
        body.resize(1_400_000, b' ');
        let frames: Vec<_> = body
            .chunks(16 << 10)
            .map(|chunk| Ok::<_, Infallible>(http_body::Frame::data(Bytes::copy_from_slice(chunk))))
            .collect();
        // Each frame arrives later than the previous one of the others.
        let stream = futures::StreamExt::then(futures::stream::iter(frames), async |frame| {
            tokio::task::yield_now().await;
            frame
        });
        fixture.send(post_to(PATH, Body::new(StreamBody::new(Box::pin(stream)))))
    };
    let answers = futures::future::join_all((0..64).map(|_| large())).await;
    assert!(
        answers.iter().all(|(status, _)| *status == StatusCode::OK),
        "{answers:?}"
    );
}

/// Slow clients hold all the memory for bodies; the next request is served once they give up.
#[tokio::test(start_paused = true)]
async fn memory_for_bodies_is_bounded() {
    let fixture = fixture();
    let slow = || {
        let chunk = Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(vec![b' '; crate::body::LARGEST])));
        let stream = futures::StreamExt::chain(futures::stream::iter([chunk]), futures::stream::pending());
        fixture.send(post_to(
            &format!("{PATH}?timeout=2s"),
            Body::new(StreamBody::new(stream)),
        ))
    };
    let began = Instant::now();
    let slow = futures::future::join_all((0..4).map(|_| slow()));
    let waiting = async {
        let mut body = review("a");
        body.resize(crate::body::LARGEST, b' ');
        let (status, _) = fixture.send(post_to(PATH, body)).await;
        (status, began.elapsed())
    };
    let small = async {
        let (status, _) = fixture.send(post_to(PATH, review("a"))).await;
        (status, began.elapsed())
    };
    let (slow, (status, waited), small) = futures::join!(slow, waiting, small);
    assert_eq!(small, (StatusCode::OK, Duration::ZERO), "a small body does not wait");
    assert!(slow.iter().all(|(status, _)| *status == StatusCode::GATEWAY_TIMEOUT));
    assert_eq!((status, waited), (StatusCode::OK, Duration::from_millis(1800)));
}

#[tokio::test]
async fn an_unready_replica_serves_and_closes_connections() {
    let fixture = fixture();
    let readyz = || Request::get("/readyz").body(Body::empty()).unwrap();
    assert_eq!(fixture.send(readyz()).await, (StatusCode::OK, "ok".to_owned()));
    fixture.unready.store(true, Ordering::SeqCst);
    let (status, body) = fixture.send(readyz()).await;
    assert_eq!((status, &*body), (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n"));
    let response = fixture
        .router
        .clone()
        .oneshot(post_to(PATH, review("a")))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()[CONNECTION], "close");
}

#[test]
fn the_time_limit_is_below_that_of_the_apiserver() {
    for (query, limit) in [
        (None, 4500),
        (Some("timeout=2s"), 1800),
        (Some("a=b&timeout=1s"), 900),
        (Some("timeout=x"), 4500),
        (Some("timeout=30s"), 4500),
    ] {
        assert_eq!(time_limit(query), Duration::from_millis(limit), "{query:?}");
    }
}
