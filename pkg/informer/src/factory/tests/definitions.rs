//! Tests of CRDs that are created, and of CRDs that are deleted together with their objects.

use super::*;

const FOO: &str = "foos.samplecontroller.k8s.io";

fn definition(name: &str, version: u32) -> serde_json::Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": version.to_string()}})
}

#[tokio::test(start_paused = true)]
async fn a_new_crd_wakes_the_loop_of_its_resource() {
    let mut fixture = Fixture::new().await;
    let _informer = fixture.informer();
    for _ in 0..9 {
        fixture.foos().await.answer_text(404, "404 page not found\n");
    }
    settle().await;
    let then = tokio::time::Instant::now();
    fixture
        .definitions
        .event("ADDED", &definition("bars.samplecontroller.k8s.io", 5));
    fixture.definitions.event("ADDED", &definition(FOO, 6));
    let call = fixture.foos().await;
    assert_eq!(call.at, then);
}

/// Returns an informer that stores `a`, its open watch, the log of a subscriber, and the
/// subscription.
async fn informer_with_object(fixture: &mut Fixture) -> (Informer<Foo>, ResponseBody, ChangeLog, Subscription) {
    let informer = fixture.informer();
    let changes = ChangeLog::default();
    let subscription = informer.subscribe(changes.handler());
    let watch = fixture.sync(&[foo("a", 1)]).await;
    changes.take();
    (informer, watch, changes, subscription)
}

/// Breaks the watch and responds to the next requests with 404.
async fn stop_serving(fixture: &mut Fixture, watch: ResponseBody) {
    watch.cut();
    for _ in 0..2 {
        fixture.foos().await.answer_text(404, "404 page not found\n");
    }
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn objects_are_removed_when_their_crd_is_deleted() {
    let mut fixture = Fixture::new().await;
    fixture.definitions.event("ADDED", &definition(FOO, 5));
    let (informer, watch, changes, _subscription) = informer_with_object(&mut fixture).await;
    fixture.definitions.event("DELETED", &definition(FOO, 6));
    stop_serving(&mut fixture, watch).await;
    assert_eq!(changes.take(), ["deleted a@1 Relisted"]);
    assert!(informer.list().is_empty() && informer.is_synced());
    // The CRD is recreated, and so is the object.
    fixture.definitions.event("ADDED", &definition(FOO, 7));
    let _watch = fixture.sync(&[foo("a", 12)]).await;
    assert_eq!(changes.take(), ["added a@12 Relisted"]);
}

#[tokio::test(start_paused = true)]
async fn objects_are_removed_when_a_list_shows_that_their_crd_is_deleted() {
    let mut fixture = Fixture::new().await;
    fixture.definitions.event("ADDED", &definition(FOO, 5));
    let (informer, watch, changes, _subscription) = informer_with_object(&mut fixture).await;
    stop_serving(&mut fixture, watch).await;
    assert!(changes.take().is_empty(), "a 404 alone removed objects");
    fixture.definitions.event("ERROR", &status(410, "Expired"));
    fixture.server.call_for(DEFINITIONS).await.answer(&list(20, &[]));
    // The loop is woken and lists at once.
    fixture.foos().await.answer_text(404, "404 page not found\n");
    settle().await;
    assert_eq!(changes.take(), ["deleted a@1 Relisted"]);
    assert!(informer.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_temporarily_unserved_resource_are_kept() {
    let mut fixture = Fixture::new().await;
    fixture.definitions.event("ADDED", &definition(FOO, 5));
    fixture
        .definitions
        .event("ADDED", &definition("bars.samplecontroller.k8s.io", 6));
    let (informer, watch, changes, _subscription) = informer_with_object(&mut fixture).await;
    fixture
        .definitions
        .event("DELETED", &definition("bars.samplecontroller.k8s.io", 7));
    stop_serving(&mut fixture, watch).await;
    assert!(changes.take().is_empty());
    assert_eq!(informer.list().len(), 1);
}
