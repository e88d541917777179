use std::time::Duration;

use kube::{Client, client::Body};
use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_metrics::Registry;
use portreeve_workqueue::Lane;
use serde_json::json;

use super::*;
use crate::{
    Effect, EventContent, EventWriter, Events, Object, Plan, RequestState, Shutdown, Target,
    scripted::{self, error_response},
};

const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn steps(&self) -> futures::stream::BoxStream<'static, ()> {
        Box::pin(futures::stream::pending())
    }
}

/// Decides by a function of the number of observations so far.
struct Scripted(Mutex<u32>, fn(u32) -> Plan);

impl Reconciler for Scripted {
    type Observed = u32;

    fn observe(&self, key: &ObjectKey) -> Option<u32> {
        let mut times = self.0.lock();
        *times += 1;
        let is_there = match &*key.name {
            "gone" => false,
            "vanishing" => *times == 1,
            _ => true,
        };
        is_there.then_some(*times)
    }

    fn decide(&self, times: &u32, _now: Timestamp) -> Plan {
        (self.1)(*times)
    }

    /// Remembers only the Pods that the first plan creates.
    fn observe_request(&self, times: &u32, _: &Effect, state: RequestState<'_>) -> bool {
        *times == 1 && matches!(state, RequestState::Found(_))
    }

    fn refused(&self, _: &u32, effect: &Effect, why: &str, _now: Timestamp) -> Plan {
        let target = pod();
        let status = json!({ "why": why });
        let event = |content| Effect::Event(target.clone(), content);
        let report = EventContent::warning("Failed", "Sync", effect.to_string());
        Plan::of(vec![
            event(report.clone().report_once(effect.to_string())),
            Effect::PatchStatus {
                target: target.clone(),
                status,
            },
            event(report),
        ])
    }
}

fn pod() -> Target {
    Target {
        resource: PODS,
        key: ObjectKey::namespaced("n", "a"),
        uid: "u".into(),
        version: "1".into(),
    }
}

struct Fixture {
    worker: Arc<Worker<Scripted>>,
    asked: scripted::RecordedRequests,
    registry: Registry,
    event_writer: EventWriter,
}

fn fixture(script: Vec<(u16, serde_json::Value)>, decide: fn(u32) -> Plan) -> Fixture {
    let (client, asked) = scripted::client(script);
    fixture_with_client(client, asked, decide)
}

fn fixture_with_client(client: Client, asked: scripted::RecordedRequests, decide: fn(u32) -> Plan) -> Fixture {
    let registry = Registry::new();
    let (events, event_writer) = Events::channel(client.clone(), "replica", &registry).unwrap();
    let worker = Worker {
        name: "test-controller",
        reconciler: Arc::new(Scripted(Mutex::new(0), decide)),
        applier: Applier {
            client,
            events,
            manager: "manager".to_owned(),
            dry_run: false,
            controller_metrics: crate::ControllerMetrics::default(),
            clock: Arc::new(FixedClock),
            fence_monitor: crate::FenceMonitor::default(),
        },
        queue: Queue::new("tests", &portreeve_workqueue::Metrics::register(&registry).unwrap()),
        clock: Arc::new(FixedClock),
        metrics: Metrics::register(&registry).unwrap(),
        outage: Outage::default(),
        failures: FailureLog::default(),
        conflicts: Conflicts::default(),
        own_writes: Arc::default(),
        sync_metrics: None,
    };
    Fixture {
        worker: Arc::new(worker),
        asked,
        registry,
        event_writer,
    }
}

impl Fixture {
    /// Works on one key until it was observed `times` times, then stops the worker.
    async fn until_asked(&self, name: &str, times: u32) {
        let queue = self.worker.queue.clone();
        queue.add(ObjectKey::namespaced("n", name), Lane::Urgent);
        let mut running = tokio::task::JoinSet::new();
        running.spawn(Arc::clone(&self.worker).run());
        while *self.worker.reconciler.0.lock() < times {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        queue.close();
        running.join_all().await;
    }

    /// Writes the events that wait, and returns all requests.
    async fn asked_with_events(self) -> Vec<String> {
        let stop = Shutdown::new();
        stop.request();
        self.event_writer.run(stop).await;
        std::mem::take(&mut *self.asked.lock())
    }

    fn count(&self, metric: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == metric).unwrap();
        family
            .get_metric()
            .iter()
            .map(|metric| metric.get_counter().get_value())
            .sum()
    }
}

fn create() -> Plan {
    Plan::of(vec![Effect::Create(Object {
        resource: PODS,
        key: ObjectKey::namespaced("n", "a"),
        body: json!({}),
    })])
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_caught_counted_and_retried() {
    let fixture = fixture(Vec::new(), |times| {
        assert!(times > 2, "the first two reconciles panic");
        create()
    });
    fixture.until_asked("a", 3).await;
    assert!((fixture.count("controller_runtime_reconcile_panics_total") - 2.0).abs() < 0.1);
    assert_eq!(fixture.asked.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_decided_again_once_the_reconciler_remembers_an_object() {
    let created = (201, json!({"metadata": {"name": "a", "uid": "u"}}));
    let fixture = fixture(vec![created.clone(), created], |times| match times {
        1 | 2 => create(),
        _ => panic!("the second plan is not decided again"),
    });
    fixture.until_asked("a", 2).await;
    assert_eq!(fixture.asked.lock().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_slow_effect_counts_as_progress() {
    let slow = tower::service_fn(|_: http::Request<Body>| async {
        tokio::time::sleep(Duration::from_secs(200)).await;
        Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(b"{}".to_vec())))
    });
    let fixture = fixture_with_client(
        Client::new(slow, "default"),
        scripted::RecordedRequests::default(),
        |_| {
            Plan::of(
                [create(), create(), create()]
                    .into_iter()
                    .flat_map(|plan| plan.effects)
                    .collect(),
            )
        },
    );
    let queue = fixture.worker.queue.clone();
    queue.add(ObjectKey::namespaced("n", "a"), Lane::Urgent);
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Arc::clone(&fixture.worker).run());
    tokio::time::sleep(Duration::from_secs(550)).await;
    let (key, still) = queue.progress().longest_stalled.unwrap();
    assert_eq!((&*key.name, still.as_secs()), ("a", 150));
    assert_eq!(queue.observe().longest_running.unwrap().as_secs(), 550);
    queue.close();
    running.join_all().await;
    assert_eq!(queue.progress().longest_stalled, None);
}

#[tokio::test(start_paused = true)]
async fn a_key_without_an_object_sends_no_requests() {
    let fixture = fixture(Vec::new(), |_| create());
    fixture.until_asked("gone", 1).await;
    assert!(fixture.asked.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stale_plan_is_decided_again() {
    let script = vec![error_response(409, "AlreadyExists")];
    let fixture = fixture(script, |times| if times == 1 { create() } else { Plan::nothing() });
    fixture.until_asked("a", 2).await;
    assert_eq!(fixture.asked.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_rejection_is_reported_and_retried_every_30_seconds() {
    let rejected_and_reported = [error_response(403, "Forbidden"), (200, json!({}))];
    let fixture = fixture(vec![rejected_and_reported; 40].concat(), |_| create());
    let started = Instant::now();
    // Each reconcile observes once for its plan and once for the report.
    fixture.until_asked("a", 39).await;
    // The backoff starts at 5 ms; the delays add up to 41 s before it reaches its limit of 30 s.
    // Jitter shortens each by up to a half. Without the limit, the test would take 20 to 45
    // minutes.
    let waited = started.elapsed().as_secs();
    assert!((110..=260).contains(&waited), "{waited}");
    assert!(fixture.count("controller_runtime_terminal_reconcile_errors_total") >= 19.0);
    let said = "PATCH /api/v1/namespaces/n/pods/a/status";
    assert!(
        fixture.asked.lock().iter().any(|asked| asked == said),
        "the rejection must be reported"
    );
}

/// The report contains an event that is sent once, a patch and another event.
#[tokio::test(start_paused = true)]
async fn a_rejected_report_is_an_event() {
    let fixture = fixture(vec![error_response(403, "Forbidden"); 20], |_| create());
    fixture.until_asked("a", 9).await;
    assert!(fixture.count("controller_runtime_terminal_reconcile_errors_total") >= 6.0);
    let asked = fixture.asked_with_events().await;
    let events = asked.iter().filter(|asked| asked.ends_with("/events")).count();
    assert_eq!(events, 2, "one for the plan and one for the report");
    let count = |verb: &str| asked.iter().filter(|asked| asked.starts_with(verb)).count();
    assert_eq!(count("PATCH"), count("POST") - events, "each plan is reported once");
}

#[tokio::test(start_paused = true)]
async fn the_failure_of_an_object_that_is_gone_is_not_reported() {
    let fixture = fixture(vec![error_response(403, "Forbidden")], |_| create());
    fixture.until_asked("vanishing", 3).await;
    assert_eq!(*fixture.asked.lock(), ["POST /api/v1/namespaces/n/pods"]);
}

/// The apiserver waits for webhooks for up to 30 s, and then answers with the status 500.
#[tokio::test(start_paused = true)]
async fn a_slow_internal_error_is_reported_at_once() {
    for (code, seconds, is_reported) in [(500, 30, true), (500, 5, false), (504, 30, false)] {
        let script = vec![error_response(code, "InternalError")];
        let (client, asked) = scripted::slow_client(script, Duration::from_secs(seconds));
        let fixture = fixture_with_client(client, asked, |_| create());
        fixture.until_asked("a", 2).await;
        let report = "PATCH /api/v1/namespaces/n/pods/a/status";
        let reported = fixture.asked.lock().iter().any(|asked| asked == report);
        assert_eq!(reported, is_reported, "{code} after {seconds} s");
    }
}

/// Returns a client of an apiserver that does not exist.
fn unreachable_client(outage: &Outage, registry: &Registry) -> Client {
    let settings = portreeve_client::Settings {
        program: "tests".to_owned(),
        call_limit: Duration::from_secs(1),
        fence: Arc::new(portreeve_client::AlwaysOpen),
        metrics: portreeve_client::Metrics::register(registry).unwrap(),
        outage: outage.clone(),
    };
    // Nothing listens on this port.
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let connection = portreeve_client::Connection::from_config(config, settings).unwrap();
    connection.client("tests").unwrap()
}

#[tokio::test]
async fn a_failure_during_an_outage_is_not_reported() {
    let (outage, registry) = (Outage::default(), Registry::new());
    let client = unreachable_client(&outage, &registry);
    let mut fixture = fixture_with_client(client.clone(), scripted::RecordedRequests::default(), |_| create());
    Arc::get_mut(&mut fixture.worker).unwrap().outage = outage.clone();
    // A request that fails, so that the outage begins.
    portreeve_client::readyz(&client).await.unwrap_err();
    let detected = async {
        while !outage.is_outage() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = outage.probe(&client) => {}
        () = detected => {}
    }
    let queue = fixture.worker.queue.clone();
    let mut running = tokio::task::JoinSet::new();
    running.spawn(Arc::clone(&fixture.worker).run());
    let (key, runs) = (ObjectKey::namespaced("n", "a"), FAILED_TOO_OFTEN + 2);
    while *fixture.worker.reconciler.0.lock() < runs {
        queue.add(key.clone(), Lane::Urgent);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    queue.close();
    running.join_all().await;
    let families = registry.gather();
    let requests = families
        .iter()
        .find(|family| family.name() == "rest_client_requests_total");
    let methods: Vec<_> = requests
        .unwrap()
        .get_metric()
        .iter()
        .flat_map(prometheus::proto::Metric::get_label)
        .filter(|label| label.name() == "method")
        .map(|label| label.value().to_owned())
        .collect();
    assert!(methods.contains(&"POST".to_owned()), "{methods:?}");
    assert!(!methods.contains(&"PATCH".to_owned()), "{methods:?}");
}

#[tokio::test(start_paused = true)]
async fn a_permanently_stale_plan_counts_as_an_error() {
    let fixture = fixture(vec![error_response(409, "Conflict"); 20], |_| create());
    fixture.until_asked("a", 10).await;
    assert!(fixture.count("controller_runtime_reconcile_errors_total") >= 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_permanently_stale_status_is_reported() {
    let patch = |_| {
        let status = json!({});
        Plan::of(vec![Effect::PatchStatus { target: pod(), status }])
    };
    let fixture = fixture(vec![error_response(409, "Conflict"); 40], patch);
    fixture.until_asked("a", 15).await;
    let asked = fixture.asked_with_events().await;
    assert!(asked.iter().any(|asked| asked.ends_with("/events")), "{asked:?}");
}

/// A webhook chooses the code of its denial. Other answers that only look like conflicts last.
#[tokio::test(start_paused = true)]
async fn a_denial_that_looks_like_a_conflict_is_reported() {
    let report = "PATCH /api/v1/namespaces/n/pods/a/status";
    for (code, reason) in [
        (409, "Conflict"),
        (409, "AlreadyExists"),
        (410, "Gone"),
        (404, "NotFound"),
    ] {
        let (code, mut denial) = error_response(code, reason);
        denial["message"] = "admission webhook \"w.example.com\" denied the request: frozen".into();
        let fixture = fixture(vec![(code, denial)], |_| create());
        fixture.until_asked("a", 2).await;
        assert_eq!(fixture.asked.lock()[1], report, "{code} {reason}");
    }
    for (code, reason) in [(409, "Conflict"), (409, "AlreadyExists"), (410, "Gone")] {
        let fixture = fixture(vec![error_response(code, reason); 13], |_| create());
        let started = Instant::now();
        // The last of 12 attempts also observes for its report.
        fixture.until_asked("a", 13).await;
        let asked = fixture.asked.lock();
        let attempts = asked.iter().take_while(|asked| *asked != report).count();
        assert!((9..14).contains(&attempts), "{code} {reason}: {asked:?}");
        assert!(started.elapsed() > Duration::from_secs(5));
    }
}

/// Somebody else writes the object all the time, and each plan is based on another version.
#[tokio::test(start_paused = true)]
async fn conflicts_about_an_object_that_changes_are_no_denial() {
    fn in_version(version: u32) -> Target {
        let version = version.to_string().as_str().into();
        Target { version, ..pod() }
    }
    let delete = |version| {
        let (target, propagation) = (in_version(version), crate::Propagation::Background);
        Plan::of(vec![Effect::Delete { target, propagation }])
    };
    let patch = |version| {
        let (target, status) = (in_version(version), json!({}));
        Plan::of(vec![Effect::PatchStatus { target, status }])
    };
    for (method, decide) in [("DELETE", delete as fn(u32) -> Plan), ("PATCH", patch)] {
        let fixture = fixture(vec![error_response(409, "Conflict"); 40], decide);
        fixture.until_asked("a", 20).await;
        let asked = fixture.asked_with_events().await;
        assert!(asked.iter().all(|asked| asked.starts_with(method)), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_that_passes_during_a_failure_is_not_lost() {
    let fixture = fixture(vec![error_response(503, "ServiceUnavailable")], |times| match times {
        1 => Plan {
            effects: create().effects,
            next: Next::At(Timestamp::from_second(-1).unwrap()),
        },
        _ => Plan::nothing(),
    });
    let started = Instant::now();
    fixture.until_asked("a", 2).await;
    assert!(started.elapsed() < Duration::from_millis(2), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_plan_with_a_next_time_is_decided_again_at_that_time() {
    let started = Instant::now();
    let fixture = fixture(Vec::new(), |_| Plan {
        effects: Vec::new(),
        next: Next::At(Timestamp::from_second(90).unwrap()),
    });
    fixture.until_asked("a", 2).await;
    let waited = started.elapsed().as_secs();
    assert!((90..92).contains(&waited), "{waited}");
}
