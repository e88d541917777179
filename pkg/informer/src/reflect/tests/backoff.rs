//! Tests of failures: how long the loop waits, and what ends the wait.

use super::*;

/// Returns whether the wait is `base` milliseconds plus jitter, up to the resolution of the clock.
fn is_wait(wait: Duration, base: u64) -> bool {
    let range = Duration::from_millis(base)..=Duration::from_millis(2 * base + 2);
    range.contains(&wait)
}

#[tokio::test(start_paused = true)]
async fn repeated_failures_back_off_longer() {
    let mut fixture = Fixture::new();
    let mut then = Instant::now();
    fixture.server.expect_list().await.refuse();
    for base in [100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 15_000, 15_000] {
        let (wait, call) = fixture.after(then).await;
        assert!(is_wait(wait, base), "{wait:?} instead of {base} ms");
        then = call.at;
        call.refuse();
    }
    let failure = fixture.reporter.status().failure.unwrap();
    assert_eq!(failure.kind, ApiErrorKind::Transient);
    assert!(failure.message.starts_with("failed to list: "), "{}", failure.message);
    assert!(failure.message.ends_with("connection refused"), "{}", failure.message);
}

#[tokio::test(start_paused = true)]
async fn a_good_watch_resets_the_backoff() {
    let mut fixture = Fixture::new();
    for _ in 0..6 {
        fixture.server.call().await.refuse();
    }
    fixture.answer_list(&list(10, &[])).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let then = Instant::now();
    watch.cut();
    let (wait, _call) = fixture.after(then).await;
    assert!(is_wait(wait, 100), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_breaks_at_once_does_not_reset_the_backoff() {
    let mut fixture = Fixture::listed(&[]).await;
    let mut then = Instant::now();
    fixture.server.expect_watch(10).await.watch().cut();
    for base in [100, 200] {
        let (wait, call) = fixture.after(then).await;
        assert!(is_wait(wait, base), "{wait:?} instead of {base} ms");
        then = call.at;
        call.watch().cut();
    }
    // After three watches that broke at once, the loop lists.
    let (wait, call) = fixture.after(then).await;
    assert!(is_wait(wait, 400) && !call.is_watch(), "{wait:?}: {call:?}");
    then = call.at;
    call.answer(&list(20, &[]));
    fixture.server.expect_watch(20).await.watch().cut();
    let (wait, _call) = fixture.after(then).await;
    assert!(is_wait(wait, 800), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn responses_after_a_watch_that_ended_early_do_not_count_as_contact() {
    let mut fixture = Fixture::listed(&[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.server.expect_watch(10).await.watch().cut();
    settle().await;
    let contact = fixture.reporter.status().last_contact;
    let watch = fixture.server.expect_watch(10).await.watch();
    settle().await;
    assert_eq!(fixture.reporter.status().last_contact, contact);
    assert!(fixture.failure().is_some());
    watch.bookmark(11);
    settle().await;
    assert!(fixture.reporter.status().last_contact > contact);
    assert_eq!(fixture.failure(), None);
}

/// An apiserver that shuts down accepts watches and ends them.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_without_an_error_backs_off() {
    let mut fixture = Fixture::listed(&[]).await;
    let mut then = Instant::now();
    fixture.server.expect_watch(10).await.watch().end();
    for base in [100, 200] {
        let (wait, call) = fixture.after(then).await;
        assert!(is_wait(wait, base), "{wait:?} instead of {base} ms");
        assert!(call.is_watch());
        then = call.at;
        call.watch().end();
    }
    settle().await;
    assert_eq!(
        fixture.failure().as_deref(),
        Some("the watch ended right after it started")
    );
}

#[tokio::test(start_paused = true)]
async fn a_version_that_expires_right_after_its_list_backs_off() {
    let mut fixture = Fixture::listed(&[]).await;
    for base in [100, 200, 400, 800] {
        let call = fixture.server.expect_watch(10).await;
        let then = call.at;
        call.answer(&status(410, "Expired"));
        let (wait, call) = fixture.after(then).await;
        assert!(is_wait(wait, base), "{wait:?} instead of {base} ms");
        call.answer(&list(10, &[]));
    }
}

#[tokio::test(start_paused = true)]
async fn lists_and_watches_obey_retry_after() {
    let mut busy = status(429, "TooManyRequests");
    busy["details"] = json!({"retryAfterSeconds": 7});
    let mut fixture = Fixture::new();
    let call = fixture.server.expect_list().await;
    let then = call.at;
    call.answer(&busy);
    let (wait, call) = fixture.after(then).await;
    assert!((7..9).contains(&wait.as_secs()), "{wait:?}");
    call.answer(&list(10, &[]));
    let call = fixture.server.expect_watch(10).await;
    let then = call.at;
    call.answer(&busy);
    // The loop repeats the watch, because a list would add to the apiserver's load.
    let (wait, call) = fixture.after(then).await;
    assert!((7..9).contains(&wait.as_secs()), "{wait:?}");
    assert_eq!(call.query["resourceVersion"], "10");
}

#[tokio::test(start_paused = true)]
async fn a_wake_lists_an_unserved_resource_at_once() {
    let mut fixture = Fixture::new();
    for _ in 0..8 {
        fixture.answer_list_with_404().await;
    }
    settle().await;
    let failure = fixture.reporter.status().failure.unwrap();
    assert_eq!(failure.kind, ApiErrorKind::NotFound);
    assert_eq!(failure.message, "failed to list: 404 page not found (NotFound)");
    let then = Instant::now();
    fixture.crd_signal.wake.notify_waiters();
    let (wait, call) = fixture.after(then).await;
    assert_eq!(wait, Duration::ZERO);
    // The wake came before the resource was served, so the loop retries soon.
    call.answer_text(404, "404 page not found\n");
    let (wait, _call) = fixture.after(then).await;
    assert!(is_wait(wait, 100), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn the_report_shows_the_last_contact() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.reporter.status().last_contact, None);
    fixture.answer_list(&list(10, &[])).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    tokio::time::sleep(Duration::from_mins(1)).await;
    watch.bookmark(11);
    settle().await;
    let contact = fixture.reporter.status().last_contact.unwrap();
    assert!(contact.elapsed() <= Duration::from_millis(1), "{:?}", contact.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_loop_ends_its_request() {
    let Fixture {
        mut server,
        _loop: tasks,
        ..
    } = Fixture::listed(&[]).await;
    let watch = server.expect_watch(10).await.watch();
    settle().await;
    drop(tasks);
    settle().await;
    assert!(watch.is_abandoned());
}
