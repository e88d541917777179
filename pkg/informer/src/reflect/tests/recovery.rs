//! Tests of recovery from panics, of wakes, and of resources that are no longer served.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_in_a_watch_receives_a_new_list() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    fixture.panics.store(true, Ordering::Relaxed);
    watch.event("ADDED", &foo("a", 11));
    let (wait, call) = fixture.after(Instant::now()).await;
    assert!(wait >= Duration::from_millis(99), "{wait:?}");
    assert!(fixture.failure().unwrap().starts_with("the sink panicked"));
    call.answer(&list(20, &[foo("a", 11)]));
    fixture.server.expect_watch(20).await;
    assert_eq!(fixture.events(), ["relisting", "listed a@11", "synced"]);
    assert_eq!(fixture.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_in_a_list_receives_a_new_list() {
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    fixture.panics.store(true, Ordering::Relaxed);
    call.answer(&list(10, &[foo("a", 1)]));
    fixture.answer_list(&list(11, &[foo("a", 1)])).await;
    fixture.server.expect_watch(11).await;
    assert_eq!(fixture.events(), ["relisting", "relisting", "listed a@1", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_wake_during_a_watch_does_not_end_the_next_wait() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    settle().await;
    fixture.crd_signal.wake.notify_waiters();
    watch.cut();
    let (wait, call) = fixture.after(Instant::now()).await;
    assert!(wait >= Duration::from_millis(99), "{wait:?}");
    call.answer_text(404, "404 page not found\n");
    let (wait, call) = fixture.after(Instant::now()).await;
    assert!(wait >= Duration::from_millis(99), "{wait:?}");
    call.answer_text(404, "404 page not found\n");
    let (wait, _call) = fixture.after(Instant::now()).await;
    assert!(wait >= Duration::from_millis(99), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wake_during_a_list_request_is_not_missed() {
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    let then = call.at;
    fixture.crd_signal.wake.notify_waiters();
    call.answer_text(404, "404 page not found\n");
    let (wait, _call) = fixture.after(then).await;
    assert_eq!(wait, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_wake_does_not_end_a_wait_that_the_apiserver_asked_for() {
    let mut busy = status(429, "TooManyRequests");
    busy["details"] = json!({"retryAfterSeconds": 7});
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    let then = call.at;
    call.answer(&busy);
    settle().await;
    fixture.crd_signal.wake.notify_waiters();
    let (wait, _call) = fixture.after(then).await;
    assert!((7..9).contains(&wait.as_secs()), "{wait:?}");
}

/// Breaks the watch and responds with 404 to the next watch and the next list.
async fn stop_serving(fixture: &mut Fixture) {
    fixture.server.expect_watch(10).await.watch().cut();
    fixture
        .server
        .expect_watch(10)
        .await
        .answer_text(404, "404 page not found\n");
    fixture.answer_list_with_404().await;
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn objects_are_removed_when_their_crd_is_deleted() {
    let mut fixture = Fixture::listed(&[foo("a", 1)]).await;
    fixture.crd_signal.definition_deleted.store(true, Ordering::Relaxed);
    stop_serving(&mut fixture).await;
    assert_eq!(fixture.events(), ["relisting", "relisting", "synced"]);
    let failure = fixture.reporter.status().failure.unwrap();
    assert_eq!(failure.kind, ApiErrorKind::NotFound);
    // The removal happens only once.
    fixture.answer_list_with_404().await;
    settle().await;
    assert_eq!(fixture.events(), ["relisting"]);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_served_for_other_reasons_keeps_its_objects() {
    let mut fixture = Fixture::listed(&[foo("a", 1)]).await;
    stop_serving(&mut fixture).await;
    assert_eq!(fixture.events(), ["relisting"]);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_was_never_listed_is_not_synced_when_its_crd_is_deleted() {
    let mut fixture = Fixture::new();
    fixture.crd_signal.definition_deleted.store(true, Ordering::Relaxed);
    fixture.answer_list_with_404().await;
    settle().await;
    assert_eq!(fixture.events(), ["relisting"]);
}

/// Etcd was restored from a backup. The apiserver sends no event until the version of the watch is
/// reached, so only a list shows it.
#[tokio::test(start_paused = true)]
async fn versions_that_decrease_are_counted() {
    let mut fixture = Fixture::listed(&[foo("a", 5)]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.bookmark(12);
    settle().await;
    assert_eq!(*fixture.version_decreases.borrow(), 0);
    watch.event("ERROR", &status(410, "Expired"));
    fixture.answer_list(&list(7, &[foo("a", 5)])).await;
    fixture.server.expect_watch(7).await;
    assert_eq!(*fixture.version_decreases.borrow(), 1);
}
