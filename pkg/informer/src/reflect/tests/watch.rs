//! Tests of watches: they resume where they ended, and the loop lists again only when necessary.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_watch_forwards_changes_in_order() {
    let mut fixture = Fixture::listed(&[]).await;
    let call = fixture.server.expect_watch(10).await;
    assert_eq!(call.query["allowWatchBookmarks"], "true");
    let seconds: u32 = call.query["timeoutSeconds"].parse().unwrap();
    assert!((300..600).contains(&seconds), "{seconds}");
    let watch = call.watch();
    watch.event("ADDED", &foo("a", 11));
    watch.event("MODIFIED", &foo("a", 12));
    watch.event("DELETED", &foo("a", 13));
    settle().await;
    assert_eq!(fixture.events(), ["applied a@11", "applied a@12", "deleted a@13"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_without_an_error_resumes_at_once_after_the_last_event() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("ADDED", &foo("a", 11));
    tokio::time::sleep(Duration::from_mins(1)).await;
    watch.end();
    let then = Instant::now();
    let call = fixture.server.expect_watch(11).await;
    assert_eq!(call.at, then);
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_after_the_last_bookmark() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("ADDED", &foo("a", 11));
    watch.bookmark(500);
    watch.end();
    fixture.server.expect_watch(500).await;
    assert_eq!(fixture.events(), ["applied a@11"]);
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_without_a_version_keeps_the_last_version() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("BOOKMARK", &json!({"metadata": {}}));
    watch.end();
    fixture.server.expect_watch(10).await;
}

#[tokio::test(start_paused = true)]
async fn a_410_as_an_event_or_as_a_status_lists_again() {
    for as_event in [true, false] {
        let mut fixture = Fixture::listed(&[]).await;
        let call = fixture.server.expect_watch(10).await;
        if as_event {
            let watch = call.watch();
            tokio::time::sleep(Duration::from_mins(1)).await;
            watch.event("ERROR", &status(410, "Expired"));
        } else {
            call.answer(&status(410, "Expired"));
        }
        let call = fixture.server.expect_list().await;
        assert!(!call.query.contains_key("resourceVersion"), "{call:?}");
        call.answer(&list(20, &[foo("a", 15)]));
        fixture.server.expect_watch(20).await;
        assert_eq!(fixture.events(), ["relisting", "listed a@15", "synced"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_that_expires_late_lists_again_at_once() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    tokio::time::sleep(Duration::from_secs(30)).await;
    watch.event("ERROR", &status(410, "Gone"));
    let then = Instant::now();
    assert_eq!(fixture.server.expect_list().await.at, then);
    assert_eq!(fixture.failure(), None);
}

#[tokio::test(start_paused = true)]
async fn any_other_error_event_backs_off_and_lists_again() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("ERROR", &status(500, "InternalError"));
    let (after, call) = fixture.after(Instant::now()).await;
    assert!(after >= Duration::from_millis(99), "{after:?}");
    assert!(!call.is_watch());
    assert_eq!(
        fixture.failure().as_deref(),
        Some("failed to watch: it is InternalError (InternalError)")
    );
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_large_lists_again_despite_retry_after() {
    let mut fixture = Fixture::listed(&[]).await;
    let mut too_large = status(504, "Timeout");
    too_large["details"] = json!({"retryAfterSeconds": 1, "causes": [{"reason": "ResourceVersionTooLarge"}]});
    fixture.server.expect_watch(10).await.answer(&too_large);
    fixture.server.expect_list().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_cut_at_any_byte_loses_and_duplicates_nothing() {
    let line = |name, version| format!("{}\n", json!({"type": "ADDED", "object": foo(name, version)}));
    let lines = [line("a", 11), line("b", 12)];
    let text = lines.concat();
    for at in 0..=text.len() {
        let mut fixture = Fixture::listed(&[]).await;
        let watch = fixture.server.expect_watch(10).await.watch();
        watch.text(&text[..at]);
        watch.cut();
        // Only complete lines are applied.
        let whole = text[..at].matches('\n').count();
        let watch = fixture.server.expect_watch([10, 11, 12][whole]).await.watch();
        for line in &lines[whole..] {
            watch.text(line);
        }
        settle().await;
        assert_eq!(fixture.events(), ["applied a@11", "applied b@12"], "cut at byte {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_ends_within_a_line_loses_nothing() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("ADDED", &foo("a", 11));
    watch.text(r#"{"type":"ADDED","object":{"metadata":"#);
    watch.end();
    fixture.server.expect_watch(11).await;
    assert_eq!(fixture.events(), ["applied a@11"]);
}

/// A watch from the same version would receive the same line again.
#[tokio::test(start_paused = true)]
async fn a_garbled_line_backs_off_and_lists_again() {
    for garbled in ["{]\n", "{\"type\":\"RENAMED\",\"object\":{}}\n", "\n"] {
        let mut fixture = Fixture::listed(&[]).await;
        let watch = fixture.server.expect_watch(10).await.watch();
        watch.event("ADDED", &foo("a", 11));
        watch.text(garbled);
        let (after, call) = fixture.after(Instant::now()).await;
        assert!(after >= Duration::from_millis(99), "{garbled:?}: {after:?}");
        assert!(!call.is_watch(), "{garbled:?}");
        assert!(
            fixture
                .failure()
                .unwrap()
                .starts_with("failed to decode the response: ")
        );
        call.answer(&list(20, &[foo("a", 11)]));
        fixture.server.expect_watch(20).await;
        assert_eq!(fixture.events(), ["applied a@11", "relisting", "listed a@11", "synced"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_aborts_the_watch_and_lists_again() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    let piece = "x".repeat(1 << 20);
    (0..17).for_each(|_| watch.text(&piece));
    let call = fixture.server.expect_list().await;
    assert_eq!(
        fixture.failure().as_deref(),
        Some("the watch sent a line of more than 16777216 bytes")
    );
    assert!(watch.is_abandoned());
    call.answer(&list(20, &[]));
    fixture.server.expect_watch(20).await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_resumes_after_the_idle_timeout_without_a_failure() {
    let mut fixture = Fixture::listed(&[]).await;
    let call = fixture.server.expect_watch(10).await;
    let watch = call.watch();
    tokio::time::sleep(Duration::from_mins(1)).await;
    watch.bookmark(15);
    let (after, call) = fixture.after(Instant::now()).await;
    let limit = Duration::from_secs(90);
    assert!(
        (limit..limit + Duration::from_millis(250)).contains(&after),
        "{after:?}"
    );
    assert_eq!(call.query["resourceVersion"], "15");
    assert!(watch.is_abandoned());
    assert_eq!(fixture.failure(), None, "silence alone is no failure");
}

#[tokio::test(start_paused = true)]
async fn bytes_without_a_line_end_count_as_silence() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    let begun = Instant::now();
    for _ in 0..10 {
        watch.text("garbage");
        tokio::time::sleep(Duration::from_secs(9)).await;
    }
    let call = fixture.server.expect_watch(10).await;
    assert!(call.at - begun < Duration::from_secs(91), "{:?}", call.at - begun);
    assert!(watch.is_abandoned());
}

/// Keeps each watch silent for `limit` until the loop lists. Returns the number of watches and the
/// list request.
async fn silent_until_list(fixture: &mut Fixture, limit: Duration) -> (usize, Call) {
    let mut watches = 0;
    loop {
        let call = fixture.server.call().await;
        if !call.is_watch() {
            return (watches, call);
        }
        let watch = call.watch();
        tokio::time::sleep(limit).await;
        settle().await;
        assert!(watch.is_abandoned());
        watches += 1;
    }
}

/// Not every apiserver sends bookmarks for an unchanged resource, and some proxies withhold lines.
#[tokio::test(start_paused = true)]
async fn the_silence_limit_doubles_after_each_unchanged_list() {
    let limit = Duration::from_secs(3);
    let mut fixture = Fixture::with_idle_timeout(limit);
    fixture.answer_list(&list(10, &[foo("a", 1)])).await;
    for (expected, then) in [
        (4, foo("a", 1)),
        (8, foo("a", 1)),
        (16, foo("a", 1)),
        (16, foo("a", 2)),
        (1, foo("a", 2)),
        (2, foo("a", 2)),
    ] {
        let (watches, call) = silent_until_list(&mut fixture, limit).await;
        assert_eq!(watches, expected);
        call.answer(&list(10, &[then]));
        settle().await;
        assert_eq!(fixture.failure(), None);
    }
    // A change that a line has reported was not withheld, so the limit stays the same.
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("MODIFIED", &foo("a", 11));
    watch.cut();
    let (watches, call) = silent_until_list(&mut fixture, limit).await;
    assert_eq!(watches, 4);
    call.answer(&list(20, &[foo("a", 11)]));
    let (watches, _) = silent_until_list(&mut fixture, limit).await;
    assert_eq!(watches, 4);
}
