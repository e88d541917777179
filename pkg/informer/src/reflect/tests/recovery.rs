//! What is not the apiserver's fault: panics, and resources that come and go.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_in_a_watch_is_given_everything_again() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    fixture.panics.store(true, Ordering::Relaxed);
    watch.event("ADDED", &foo("a", 11));
    let (wait, call) = fixture.after(Instant::now()).await;
    assert!(wait >= Duration::from_millis(99), "{wait:?}");
    assert!(
        fixture
            .failure()
            .unwrap()
            .starts_with("a panic in what takes the objects in")
    );
    call.answer(&list(20, &[foo("a", 11)]));
    fixture.server.expect_watch(20).await;
    assert_eq!(fixture.events(), ["relisting", "listed a@11", "synced"]);
    assert_eq!(fixture.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_in_a_list_is_given_everything_again() {
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    fixture.panics.store(true, Ordering::Relaxed);
    call.answer(&list(10, &[foo("a", 1)]));
    fixture.server.expect_list().await.answer(&list(11, &[foo("a", 1)]));
    fixture.server.expect_watch(11).await;
    assert_eq!(fixture.events(), ["relisting", "relisting", "listed a@1", "synced"]);
}

#[tokio::test(start_paused = true)]
async fn a_wake_while_the_watch_is_open_does_not_end_the_next_wait() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    settle().await;
    fixture.wake.notify_waiters();
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
async fn a_wake_while_the_answer_is_under_way_is_not_missed() {
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    let then = call.at;
    fixture.wake.notify_waiters();
    call.answer_text(404, "404 page not found\n");
    let (wait, _call) = fixture.after(then).await;
    assert_eq!(wait, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_wake_ends_no_wait_that_the_apiserver_asked_for() {
    let mut busy = status(429, "TooManyRequests");
    busy["details"] = json!({"retryAfterSeconds": 7});
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    let then = call.at;
    call.answer(&busy);
    settle().await;
    fixture.wake.notify_waiters();
    let (wait, _call) = fixture.after(then).await;
    assert_eq!(wait.as_secs(), 7);
}

/// A list that answers 404, after a watch that ended.
async fn not_served(fixture: &mut Fixture) {
    fixture.server.expect_watch(10).await.watch().cut();
    fixture
        .server
        .expect_watch(10)
        .await
        .answer_text(404, "404 page not found\n");
    fixture
        .server
        .expect_list()
        .await
        .answer_text(404, "404 page not found\n");
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn objects_without_a_definition_are_gone() {
    let mut fixture = Fixture::listed(&[foo("a", 1)]).await;
    fixture.definition_deleted.store(true, Ordering::Relaxed);
    not_served(&mut fixture).await;
    assert_eq!(fixture.events(), ["relisting", "relisting", "synced"]);
    let failure = fixture.reporter.status().failure.unwrap();
    assert_eq!(failure.kind, ApiErrorKind::NotFound);
    // Said once.
    fixture
        .server
        .expect_list()
        .await
        .answer_text(404, "404 page not found\n");
    settle().await;
    assert_eq!(fixture.events(), ["relisting"]);
}

#[tokio::test(start_paused = true)]
async fn a_resource_that_is_not_served_for_other_reasons_keeps_its_objects() {
    let mut fixture = Fixture::listed(&[foo("a", 1)]).await;
    not_served(&mut fixture).await;
    assert_eq!(fixture.events(), ["relisting"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_never_listed_is_not_complete_because_its_definition_is_deleted() {
    let mut fixture = Fixture::new();
    fixture.definition_deleted.store(true, Ordering::Relaxed);
    fixture
        .server
        .expect_list()
        .await
        .answer_text(404, "404 page not found\n");
    settle().await;
    assert_eq!(fixture.events(), ["relisting"]);
}
