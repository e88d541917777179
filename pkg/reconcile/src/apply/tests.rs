mod corpus;
mod list;
mod replace;

use parking_lot::Mutex;
use portreeve_api::{ObjectKey, Resource};
use portreeve_metrics::Registry;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::*;
use crate::{
    EventContent, EventSeverity, EventWriter, Next, Object, Propagation, Shutdown, SystemClock, Target,
    scripted::{self, error_response, no_pod},
};

const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");

pub(super) fn target() -> Target {
    Target {
        resource: PODS,
        key: ObjectKey::namespaced("n", "a"),
        uid: "u".into(),
        version: "1".into(),
    }
}

fn create() -> Effect {
    Effect::Create(Object {
        resource: PODS,
        key: ObjectKey::namespaced("n", "a"),
        body: json!({}),
    })
}

fn delete() -> Effect {
    Effect::Delete {
        target: target(),
        propagation: Propagation::Background,
    }
}

fn patch() -> Effect {
    Effect::PatchStatus {
        target: target(),
        status: json!({}),
    }
}

fn event() -> Effect {
    let note = EventContent {
        type_: EventSeverity::Normal,
        reason: "Synced",
        action: "Sync",
        message: "done".to_owned(),
        report_once: None,
    };
    Effect::Event(target(), note)
}

fn applier(script: Vec<(u16, serde_json::Value)>) -> (Applier, EventWriter, scripted::RecordedRequests) {
    let (client, asked) = scripted::client(script);
    let (events, writer) = Events::channel(client.clone(), "replica", &Registry::new()).unwrap();
    let applier = Applier {
        client,
        events,
        manager: "manager".to_owned(),
        dry_run: false,
        controller_metrics: ControllerMetrics::default(),
        clock: Arc::new(SystemClock),
        fence_monitor: FenceMonitor::default(),
    };
    (applier, writer, asked)
}

fn name(applied: &Applied) -> &'static str {
    match applied {
        Applied::Done => "done",
        Applied::Stale(_) => "stale",
        Applied::Failed { .. } => "failed",
        Applied::Refused(_) => "refused",
    }
}

#[tokio::test]
async fn each_response_maps_to_one_result() {
    let table = [
        (create(), 409, "AlreadyExists", "stale"),
        (create(), 404, "NotFound", "refused"),
        (create(), 403, "Forbidden", "refused"),
        (create(), 422, "Invalid", "refused"),
        (create(), 429, "TooManyRequests", "failed"),
        (create(), 503, "ServiceUnavailable", "failed"),
        (patch(), 409, "Conflict", "stale"),
        (patch(), 404, "NotFound", "stale"),
        (patch(), 500, "InternalError", "failed"),
        // This 404 names no object, so it may come from a proxy.
        (delete(), 404, "NotFound", "failed"),
        (delete(), 409, "Conflict", "stale"),
        (delete(), 504, "Timeout", "failed"),
    ];
    for (effect, code, reason, expected) in table {
        let (doer, _writer, _) = applier(vec![error_response(code, reason)]);
        let applied = doer.run(&Plan::of(vec![effect.clone()])).await;
        assert_eq!(name(&applied), expected, "{effect}: {code} {reason}");
    }
}

#[tokio::test]
async fn a_plan_stops_at_the_first_effect_that_does_not_succeed() {
    let (doer, _writer, asked) = applier(vec![(201, json!({})), error_response(409, "Conflict")]);
    let applied = doer.run(&Plan::of(vec![create(), patch(), delete()])).await;
    assert_eq!(name(&applied), "stale");
    assert_eq!(
        *asked.lock(),
        [
            "POST /api/v1/namespaces/n/pods",
            "PATCH /api/v1/namespaces/n/pods/a/status"
        ]
    );
}

#[tokio::test]
async fn an_object_that_is_gone_already_does_not_stop_the_plan() {
    let (doer, _writer, asked) = applier(vec![no_pod("a")]);
    let applied = doer.run(&Plan::of(vec![delete(), patch()])).await;
    assert_eq!(name(&applied), "done");
    assert_eq!(asked.lock().len(), 2);
}

#[tokio::test]
async fn retry_after_is_passed_on_from_the_response() {
    let (code, mut status) = error_response(429, "TooManyRequests");
    status["details"] = json!({"retryAfterSeconds": 7});
    let (doer, _writer, _) = applier(vec![(code, status)]);
    let applied = doer.run(&Plan::of(vec![create()])).await;
    assert!(matches!(applied, Applied::Failed { after, .. } if after == Duration::from_secs(7)));
}

#[tokio::test]
async fn creating_in_a_terminating_namespace_is_not_an_error() {
    let (code, mut status) = error_response(403, "Forbidden");
    status["details"] = json!({"causes": [{"reason": "NamespaceTerminating"}]});
    let (doer, _writer, asked) = applier(vec![(code, status)]);
    assert_eq!(name(&doer.run(&Plan::of(vec![create(), patch()])).await), "done");
    assert_eq!(asked.lock().len(), 1, "later effects must be skipped");
}

#[tokio::test]
async fn a_dry_run_sends_nothing() {
    let (mut doer, writer, asked) = applier(Vec::new());
    doer.dry_run = true;
    let plan = Plan {
        effects: vec![create(), patch(), delete(), event()],
        next: Next::OnChange,
    };
    assert_eq!(name(&doer.run(&plan).await), "done");
    drop(doer);
    writer.run(Shutdown::new()).await;
    assert!(asked.lock().is_empty());
}

#[tokio::test]
async fn waiting_events_are_written_on_shutdown() {
    let (doer, writer, asked) = applier(Vec::new());
    assert_eq!(name(&doer.run(&Plan::of(vec![event()])).await), "done");
    assert!(asked.lock().is_empty(), "an event must not delay the plan");
    let stop = Shutdown::new();
    stop.request();
    writer.run(stop).await;
    assert_eq!(*asked.lock(), ["POST /apis/events.k8s.io/v1/namespaces/n/events"]);
}

/// Each row has the gap between events in ms, the number of events, and the expected delay of the
/// first write in ms.
#[tokio::test(start_paused = true)]
async fn events_wait_for_the_end_of_a_burst_for_a_limited_time() {
    for (gap, events, expected) in [(0, 1, 1_000), (400, 5, 1_000), (10, 4_000, 30_000), (1, 12_000, 11_000)] {
        let (doer, writer, asked) = applier(Vec::new());
        let stop = Shutdown::new();
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        tasks.spawn(writer.run(stop.clone()));
        tasks.spawn(async move {
            for _ in 0..events {
                doer.run(&Plan::of(vec![event()])).await;
                sleep(Duration::from_millis(gap)).await;
            }
        });
        while asked.lock().is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        let after = began.elapsed().as_millis();
        assert!(
            (expected..expected + 500).contains(&after),
            "{events} events {gap} ms apart: {after} ms"
        );
        stop.request();
        tasks.join_all().await;
    }
}

#[tokio::test]
async fn events_beyond_the_queue_limit_are_dropped_and_counted() {
    let (client, _) = scripted::client(Vec::new());
    let registry = Registry::new();
    let (events, _writer) = Events::channel(client, "replica", &registry).unwrap();
    let Effect::Event(target, note) = event() else {
        unreachable!()
    };
    for _ in 0..20_003 {
        events.send("manager", &target, &note);
    }
    let dropped = registry.gather()[0].get_metric()[0].get_counter().get_value();
    assert!((dropped - 3.0).abs() < f64::EPSILON, "{dropped}");
}

#[tokio::test]
async fn an_error_names_the_effect_and_the_cause() {
    let (doer, _writer, _) = applier(vec![error_response(403, "Forbidden")]);
    let Applied::Refused(error) = doer.run(&Plan::of(vec![create()])).await else {
        panic!("a 403 must count as rejected");
    };
    let text = portreeve_client::error_chain(&error);
    assert!(text.starts_with("failed to create Pod n/a: "), "{text}");
    assert!(text.contains("Forbidden"), "{text}");
}

#[tokio::test]
async fn require_absent_reads_the_object_before_the_plan_continues() {
    let absent = Effect::RequireAbsent {
        resource: PODS,
        key: ObjectKey::namespaced("n", "a"),
        uid: "u".into(),
        controller: "o".into(),
    };
    let found = |uid: &str, owner: &str| {
        let owner = json!({"apiVersion": "v1", "kind": "Foo", "name": "f", "uid": owner, "controller": true});
        (
            200,
            json!({"metadata": {"name": "a", "uid": uid, "ownerReferences": [owner]}}),
        )
    };
    let table = [
        (no_pod("a"), "done", 2),
        (no_pod("b"), "failed", 1),
        (error_response(404, "NotFound"), "failed", 1),
        (found("another", "o"), "done", 2),
        (found("u", "another"), "done", 2),
        (found("u", "o"), "stale", 1),
        ((200, json!({"kind": "Status", "metadata": {}})), "failed", 1),
        (error_response(403, "Forbidden"), "refused", 1),
        (error_response(503, "ServiceUnavailable"), "failed", 1),
    ];
    for (answer, expected, requests) in table {
        let (doer, _writer, asked) = applier(vec![answer.clone()]);
        let applied = doer.run(&Plan::of(vec![absent.clone(), patch()])).await;
        assert_eq!((name(&applied), asked.lock().len()), (expected, requests), "{answer:?}");
        assert_eq!(asked.lock()[0], "GET /api/v1/namespaces/n/pods/a");
    }
}

#[tokio::test]
async fn require_present_reads_the_object_before_the_plan_continues() {
    let present = Effect::RequirePresent {
        resource: PODS,
        key: ObjectKey::namespaced("n", "a"),
        uid: "u".into(),
    };
    let found = |uid: &str, deleted: serde_json::Value| {
        (
            200,
            json!({"metadata": {"name": "a", "uid": uid, "deletionTimestamp": deleted}}),
        )
    };
    let table = [
        (found("u", serde_json::Value::Null), "done", 2),
        (found("u", json!("2026-01-01T00:00:00Z")), "stale", 1),
        (found("another", serde_json::Value::Null), "stale", 1),
        ((200, json!({"kind": "Status", "metadata": {}})), "failed", 1),
        (error_response(404, "NotFound"), "stale", 1),
        (error_response(403, "Forbidden"), "refused", 1),
        (error_response(503, "ServiceUnavailable"), "failed", 1),
    ];
    for (answer, expected, requests) in table {
        let (doer, _writer, asked) = applier(vec![answer.clone()]);
        let applied = doer.run(&Plan::of(vec![present.clone(), patch()])).await;
        assert_eq!((name(&applied), asked.lock().len()), (expected, requests), "{answer:?}");
        assert_eq!(asked.lock()[0], "GET /api/v1/namespaces/n/pods/a");
    }
}

#[tokio::test]
async fn read_continues_if_the_answer_confirms_what_the_reconciler_remembers() {
    let read = Effect::Read {
        resource: PODS,
        key: ObjectKey::namespaced("n", "a"),
    };
    let found = (200, json!({"metadata": {"name": "a", "uid": "u"}}));
    let table = [
        (found.clone(), false, "Found", "done", 2),
        (found, true, "Found", "stale", 1),
        (no_pod("a"), false, "Absent", "done", 2),
        (no_pod("a"), true, "Absent", "stale", 1),
        (no_pod("b"), true, "", "failed", 1),
        ((200, json!({"kind": "Status", "metadata": {}})), true, "", "failed", 1),
        (error_response(403, "Forbidden"), true, "", "refused", 1),
        (error_response(503, "ServiceUnavailable"), true, "", "failed", 1),
    ];
    for (answer, is_changed, observed, expected, requests) in table {
        let (doer, _writer, asked) = applier(vec![answer.clone()]);
        let states = Mutex::new(String::new());
        let observe = |progress: Progress<'_>| {
            *states.lock() += state_of(progress);
            is_changed
        };
        let plan = Plan::of(vec![read.clone(), patch()]);
        let applied = doer.run_with_progress(&plan, observe).await;
        assert_eq!((name(&applied), asked.lock().len()), (expected, requests), "{answer:?}");
        assert_eq!(*states.lock(), observed, "{answer:?}");
        assert_eq!(asked.lock()[0], "GET /api/v1/namespaces/n/pods/a");
    }
}

/// Returns the state of the request of this progress.
fn state_of(progress: Progress<'_>) -> &'static str {
    let Progress::Request(_, state) = progress else {
        return "";
    };
    match state {
        RequestState::Sending => "Sending ",
        RequestState::Found(_) => "Found",
        RequestState::Listed(_) => "Listed",
        RequestState::Absent => "Absent",
        RequestState::Changed => "Changed",
        RequestState::Deleted => "Deleted",
        RequestState::Unanswered => "Unanswered",
        RequestState::Rejected => "Rejected",
    }
}

#[tokio::test]
async fn creates_and_deletes_report_their_states() {
    let table = [
        (create(), (201, json!({"metadata": {"uid": "u"}})), "Sending Found"),
        (create(), (201, json!({})), "Sending Unanswered"),
        (create(), error_response(409, "AlreadyExists"), "Sending Changed"),
        (create(), error_response(409, "Conflict"), "Sending Rejected"),
        (create(), error_response(422, "Invalid"), "Sending Rejected"),
        (create(), error_response(429, "TooManyRequests"), "Sending Rejected"),
        (create(), error_response(500, "InternalError"), "Sending Unanswered"),
        (create(), error_response(504, "Timeout"), "Sending Unanswered"),
        (delete(), (200, json!({})), "Deleted"),
        (delete(), no_pod("a"), "Deleted"),
        (delete(), no_pod("b"), "Changed"),
        (delete(), error_response(409, "Conflict"), "Changed"),
        (patch(), (200, json!({})), ""),
    ];
    for (effect, answer, expected) in table {
        let (doer, _writer, _) = applier(vec![answer.clone()]);
        let states = Mutex::new(String::new());
        let observe = |progress: Progress<'_>| {
            *states.lock() += state_of(progress);
            false
        };
        doer.run_with_progress(&Plan::of(vec![effect.clone()]), observe).await;
        assert_eq!(*states.lock(), expected, "{effect}: {answer:?}");
    }
}

#[tokio::test]
async fn a_report_once_event_is_sent_once_per_subject() {
    let (doer, writer, asked) = applier(Vec::new());
    let about = |subject: &str| {
        let Effect::Event(target, note) = event() else {
            unreachable!()
        };
        let report_once = Some(subject.to_owned());
        Effect::Event(target, EventContent { report_once, ..note })
    };
    let plan = Plan::of(vec![about("x"), about("x"), about("y"), event(), about("x")]);
    doer.run(&plan).await;
    let stop = Shutdown::new();
    stop.request();
    writer.run(stop).await;
    assert_eq!(asked.lock().len(), 3);
}

#[tokio::test]
async fn metrics_are_updated_only_after_all_previous_effects_succeed() {
    let (mut doer, _writer, _) = applier(vec![(201, json!({})), error_response(409, "AlreadyExists")]);
    let registry = Registry::new();
    doer.controller_metrics
        .add_counter(&registry, "runs_total", "runs")
        .unwrap();
    doer.controller_metrics
        .add_latency(&registry, "skew_seconds", "skew", crate::LATENCY_BUCKETS)
        .unwrap();
    let since = SystemClock.now() - Duration::from_mins(1);
    let count = Effect::Count {
        metric: "runs_total",
        by: 2,
    };
    let latency = Effect::ObserveLatency {
        metric: "skew_seconds",
        since,
    };
    let plan = Plan::of(vec![create(), count, latency]);
    assert_eq!(name(&doer.run(&plan).await), "done");
    assert_eq!(name(&doer.run(&plan).await), "stale");
    let families = registry.gather();
    let metric = |name: &str| {
        families
            .iter()
            .find(|family| family.name() == name)
            .unwrap()
            .get_metric()[0]
            .clone()
    };
    assert!((metric("runs_total").get_counter().get_value() - 2.0).abs() < f64::EPSILON);
    let skew = metric("skew_seconds");
    assert_eq!(skew.get_histogram().get_sample_count(), 1);
    assert!((60.0..70.0).contains(&skew.get_histogram().get_sample_sum()));
}
