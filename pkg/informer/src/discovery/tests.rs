//! Tests of discovery with a fake apiserver in paused time: when it sends requests, and how it
//! handles the responses.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower::BoxError;

use super::*;
use crate::{Factory, InformerConfig};

const LONG: Duration = Duration::from_mins(1);
const ROOTS: [&str; 2] = ["/api", "/apis"];

type FakeResponse = UnsyncBoxBody<Bytes, BoxError>;

/// A fake apiserver with one response per path. Other paths get a 404. Watches stay silent.
#[derive(Default)]
struct FakeApiserver {
    responses: BTreeMap<String, (u16, String)>,
    /// Whether responses lack an ETag.
    omits_etags: bool,
    /// The time and path of each discovery request, and whether the response was a 304.
    log: Vec<(Instant, String, bool)>,
}

/// Running discovery with its apiserver.
struct Fixture {
    apiserver: Arc<Mutex<FakeApiserver>>,
    discovery: Discovery,
    known: watch::Receiver<Option<Arc<ServedResources>>>,
}

impl FakeApiserver {
    fn respond(&mut self, request: &Request<Body>) -> Response<FakeResponse> {
        let path = request.uri().path().to_owned();
        let missing = || (404, "404 page not found".to_owned());
        let (code, text) = self.responses.get(&path).cloned().unwrap_or_else(missing);
        if code == 200 && request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            return Response::new(StreamBody::new(stream::pending()).boxed_unsync());
        }
        let mut hash = DefaultHasher::new();
        text.hash(&mut hash);
        let tag = format!("\"{}\"", hash.finish());
        let etag = request.headers().get(header::IF_NONE_MATCH);
        let is_same = code == 200 && etag.is_some_and(|etag| *etag == tag);
        if !path.contains("apiregistration") && !path.contains("apiextensions") {
            self.log.push((Instant::now(), path, is_same));
        }
        let response = Response::builder();
        let (response, body) = match (is_same, self.omits_etags) {
            (true, _) => (response.status(304), FakeResponse::default()),
            (false, true) => (response.status(code), full(text)),
            (false, false) => (response.status(code).header(header::ETAG, tag), full(text)),
        };
        response.body(body).expect("a response")
    }

    fn set(&mut self, path: &str, body: &Value) {
        self.responses.insert(path.to_owned(), (200, body.to_string()));
    }

    /// Responds to `path` with a 500.
    fn fail(&mut self, path: &str) {
        self.responses
            .insert(path.to_owned(), (500, "etcd is unavailable".to_owned()));
    }
}

impl Fixture {
    /// Starts discovery with an apiserver that serves Pods and these groups.
    fn new(groups: &[Value]) -> Self {
        let apiserver = Arc::new(Mutex::new(FakeApiserver::default()));
        apiserver
            .lock()
            .set("/api", &whole(&[group("", "v1", "Current", &["Pod"])]));
        apiserver.lock().set("/apis", &whole(groups));
        Self::with_apiserver(apiserver)
    }

    fn with_apiserver(apiserver: Arc<Mutex<FakeApiserver>>) -> Self {
        let server = Arc::clone(&apiserver);
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move { Ok::<_, BoxError>(server.lock().respond(&request)) }
        });
        let client = Client::new(service, "default");
        let informers = Factory::new(client.clone(), InformerConfig::default());
        let (discovery, known) = Discovery::start(client, &informers.shared_watches());
        Self {
            apiserver,
            discovery,
            known,
        }
    }

    fn set(&self, groups: &[Value]) {
        self.apiserver.lock().set("/apis", &whole(groups));
    }

    /// Formats the known resources, and after a `|` the failed versions.
    fn known(&mut self) -> String {
        let known = self.known.borrow_and_update();
        let Some(served) = known.as_deref() else {
            return "nothing".to_owned();
        };
        let names = served.preferred(&[]).map(ToString::to_string);
        let failed = served.failed().map(|version| format!("| {version}"));
        names.chain(failed).collect::<Vec<_>>().join(" ")
    }

    /// Returns the requests within the next `time`.
    async fn requests_within(&self, time: Duration) -> Vec<(Instant, String, bool)> {
        self.apiserver.lock().log.clear();
        sleep(time).await;
        std::mem::take(&mut self.apiserver.lock().log)
    }
}

fn full(text: String) -> FakeResponse {
    Full::from(text).map_err(|never| match never {}).boxed_unsync()
}

/// Returns an aggregated document.
fn whole(groups: &[Value]) -> Value {
    json!({"kind": "APIGroupDiscoveryList", "items": groups})
}

fn group(name: &str, version: &str, freshness: &str, kinds: &[&str]) -> Value {
    let resources = kinds.iter().map(|kind| {
        let plural = format!("{}s", kind.to_lowercase());
        json!({"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["get"]})
    });
    let resources: Vec<_> = resources.collect();
    json!({"metadata": {"name": name}, "versions": [{"version": version, "freshness": freshness, "resources": resources}]})
}

fn foos() -> Value {
    group("a", "v1", "Current", &["Foo"])
}

fn bars() -> Value {
    group("b", "v1", "Current", &["Bar"])
}

#[tokio::test(start_paused = true)]
async fn unchanged_resources_are_published_once_and_requested_twice_a_minute() {
    let mut fixture = Fixture::new(&[foos()]);
    assert_eq!(fixture.known(), "nothing");
    sleep(PERIOD / 2).await;
    assert_eq!(fixture.known(), "pods.v1 foos.v1.a");
    let requests = fixture.requests_within(PERIOD * 4).await;
    assert_eq!(requests.len(), 8, "{requests:?}");
    for (_, path, is_same) in requests {
        assert!(ROOTS.contains(&path.as_str()) && is_same, "{path}");
    }
    assert!(!fixture.known.has_changed().expect("discovery is running"));
    assert_eq!(fixture.discovery.failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_without_an_event_is_discovered_within_the_period() {
    let mut fixture = Fixture::new(&[foos()]);
    sleep(Duration::from_secs(1)).await;
    fixture.set(&[bars()]);
    sleep(PERIOD).await;
    assert_eq!(fixture.known(), "pods.v1 bars.v1.b");
}

#[tokio::test(start_paused = true)]
async fn a_read_ends_with_an_attempt_that_began_after_it() {
    let mut fixture = Fixture::new(&[foos()]);
    sleep(Duration::from_secs(1)).await;
    fixture.set(&[bars()]);
    fixture.apiserver.lock().log.clear();
    let reads = tokio::join!(fixture.discovery.read_now(), fixture.discovery.read_now());
    assert!(reads.0.is_ok() && reads.1.is_ok());
    assert_eq!(fixture.known(), "pods.v1 bars.v1.b");
    // One attempt, which no series of others follows.
    assert_eq!(fixture.requests_within(PERIOD / 2).await.len(), 0);
    fixture.apiserver.lock().fail("/apis");
    let failure = fixture.discovery.read_now().await.expect_err("no document");
    assert!(failure.message.contains("etcd is unavailable"), "{}", failure.message);
    fixture.set(&[foos()]);
    assert!(fixture.discovery.read_now().await.is_ok());
    assert_eq!(fixture.known(), "pods.v1 foos.v1.a");
}

#[tokio::test(start_paused = true)]
async fn an_event_triggers_requests_soon_and_for_a_while() {
    let mut fixture = Fixture::new(&[foos()]);
    sleep(PERIOD / 2).await;
    fixture.known();
    fixture.discovery.refresh();
    let refreshed = Instant::now();
    let requests = fixture.requests_within(Duration::from_secs(1)).await;
    assert_eq!(requests[0].0 - refreshed, DEBOUNCE);
    fixture.set(&[foos(), bars()]);
    let late = Instant::now();
    fixture.known.changed().await.expect("discovery is running");
    assert!(late.elapsed() <= Duration::from_millis(500), "{:?}", late.elapsed());
    assert_eq!(fixture.known(), "pods.v1 foos.v1.a bars.v1.b");
    // Afterwards there are no further requests.
    let requests = fixture.requests_within(PERIOD).await;
    assert!(
        requests
            .iter()
            .all(|(at, ..)| *at - refreshed <= Duration::from_secs(4)),
        "{requests:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn simultaneous_events_trigger_one_series_of_requests() {
    let fixture = Fixture::new(&[foos()]);
    sleep(PERIOD / 2).await;
    for _ in 0..100 {
        fixture.discovery.refresh();
    }
    let requests = fixture.requests_within(LONG).await;
    // One series of requests, and two or three periodic requests.
    assert!(
        requests.len() <= 2 * (EVENT_POLL_DELAYS.len() + 4),
        "{}",
        requests.len()
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_keeps_the_known_resources_and_ends_with_the_next_response() {
    let mut fixture = Fixture::new(&[foos()]);
    sleep(Duration::from_secs(20)).await;
    fixture.known();
    for path in ROOTS {
        fixture.apiserver.lock().fail(path);
    }
    let requests = fixture.requests_within(LONG * 10).await;
    let failures = fixture.discovery.failures();
    assert_eq!(usize::try_from(failures).expect("few"), requests.len() / 2);
    assert!((10..=40).contains(&failures), "{failures}");
    assert!(
        !fixture.known.has_changed().expect("discovery is running"),
        "the failure changed the known resources"
    );
    let failure = fixture.discovery.failure().expect("discovery fails");
    assert_eq!(
        failure.message,
        "discovery request to /api failed: etcd is unavailable (InternalServerError)"
    );
    fixture
        .apiserver
        .lock()
        .set("/api", &whole(&[group("", "v1", "Current", &["Pod"])]));
    fixture.set(&[bars()]);
    fixture.discovery.refresh();
    sleep(LONG * 2).await;
    assert_eq!(fixture.known(), "pods.v1 bars.v1.b");
    assert!(fixture.discovery.failure().is_none());
    assert_eq!(fixture.discovery.failures(), failures);
}

#[tokio::test(start_paused = true)]
async fn an_empty_response_is_a_failure() {
    let mut fixture = Fixture::new(&[]);
    fixture.apiserver.lock().set("/api", &whole(&[]));
    sleep(LONG).await;
    assert_eq!(fixture.known(), "nothing");
    assert!(fixture.discovery.failures() > 1);
    fixture.set(&[foos()]);
    sleep(LONG * 2).await;
    assert_eq!(fixture.known(), "foos.v1.a");
    let failures = fixture.discovery.failures();
    for nothing in [
        json!({"kind": "APIGroupDiscoveryList", "items": null}),
        json!({"kind": "APIGroupList", "groups": []}),
    ] {
        fixture.apiserver.lock().set("/apis", &nothing);
        sleep(LONG * 2).await;
    }
    fixture.apiserver.lock().responses.remove("/apis");
    sleep(LONG * 2).await;
    assert_eq!(fixture.known(), "foos.v1.a");
    assert!(fixture.discovery.failures() >= failures + 3);
    assert!(fixture.discovery.failure().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_apiserver_may_lack_the_core_group() {
    let mut fixture = Fixture::new(&[foos()]);
    fixture.apiserver.lock().responses.remove("/api");
    sleep(LONG).await;
    assert_eq!(fixture.known(), "foos.v1.a");
    assert_eq!(fixture.discovery.failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_missing_group_is_kept_while_its_api_service_exists() {
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let apiserver = Arc::new(Mutex::new(FakeApiserver::default()));
    apiserver.lock().set("/apis", &whole(&[foos(), bars()]));
    let list = json!({"kind": "APIServiceList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "v1.b", "resourceVersion": "1"}}]});
    apiserver.lock().set(services, &list);
    let mut fixture = Fixture::with_apiserver(apiserver);
    sleep(LONG).await;
    fixture.set(&[]);
    sleep(LONG).await;
    assert_eq!(
        fixture.known(),
        "foos.v1.a bars.v1.b",
        "the empty response removed resources"
    );
    fixture.set(&[group("c", "v1", "Current", &["Baz"])]);
    sleep(LONG).await;
    assert_eq!(fixture.known(), "bars.v1.b bazs.v1.c | b/v1");
    // The watch is silent, so the loop lists the services again, which is now forbidden.
    fixture
        .apiserver
        .lock()
        .responses
        .insert(services.to_owned(), (403, "denied".to_owned()));
    sleep(LONG * 10).await;
    assert_eq!(
        fixture.known(),
        "bazs.v1.c",
        "outdated names of API services kept a group"
    );
}

/// Sets responses without the aggregated document and without ETags.
fn plain(apiserver: &mut FakeApiserver) {
    let list = |kinds: &[&str]| {
        let resources = kinds.iter().map(|kind| {
            json!({"name": format!("{}s", kind.to_lowercase()), "kind": kind, "namespaced": true, "verbs": ["get"]})
        });
        json!({"kind": "APIResourceList", "resources": resources.collect::<Vec<_>>()})
    };
    apiserver.omits_etags = true;
    apiserver.set("/api", &json!({"kind": "APIVersions", "versions": ["v1"]}));
    apiserver.set("/api/v1", &list(&["Pod", "Node"]));
    let groups = json!([
        {"name": "a", "versions": [{"groupVersion": "a/v1"}, {"groupVersion": "a/v2"}], "preferredVersion": {"groupVersion": "a/v2"}},
        {"name": "b", "versions": [{"groupVersion": "b/v1"}]},
    ]);
    apiserver.set("/apis", &json!({"kind": "APIGroupList", "groups": groups}));
    apiserver.set("/apis/a/v1", &list(&["Foo", "Old"]));
    apiserver.set("/apis/a/v2", &list(&["Foo"]));
    apiserver.set("/apis/b/v1", &list(&["Bar"]));
}

#[tokio::test(start_paused = true)]
async fn without_the_aggregated_document_each_version_is_requested_and_fails_separately() {
    let apiserver = Arc::new(Mutex::new(FakeApiserver::default()));
    plain(&mut apiserver.lock());
    apiserver.lock().fail("/apis/b/v1");
    let mut fixture = Fixture::with_apiserver(apiserver);
    sleep(LONG).await;
    assert_eq!(fixture.known(), "pods.v1 nodes.v1 foos.v2.a olds.v1.a | b/v1");
    plain(&mut fixture.apiserver.lock());
    sleep(LONG).await;
    assert_eq!(fixture.known(), "pods.v1 nodes.v1 foos.v2.a olds.v1.a bars.v1.b");
    fixture.apiserver.lock().fail("/apis/a/v2");
    sleep(LONG).await;
    assert_eq!(fixture.known(), "pods.v1 nodes.v1 foos.v2.a olds.v1.a bars.v1.b | a/v2");
    assert_eq!(fixture.discovery.failures(), 0);
}

#[tokio::test(start_paused = true)]
async fn discovery_ends_when_stopped_or_dropped() {
    let fixture = Fixture::new(&[foos()]);
    sleep(LONG).await;
    fixture.discovery.stop().await;
    let mut known = fixture.known;
    known.borrow_and_update();
    assert!(known.changed().await.is_err());
    let Fixture {
        discovery, mut known, ..
    } = Fixture::new(&[foos()]);
    drop(discovery);
    tokio::time::timeout(LONG, known.changed())
        .await
        .expect("discovery ends")
        .expect_err("the channel is closed");
}
