//! Tests of the counts of lists and of resumed watches.

use super::*;

/// Returns the counts above zero.
fn counts(fixture: &Fixture) -> Vec<(&'static str, u64)> {
    let reconnects = fixture.reporter.status().reconnects;
    let all = reconnects.relists().chain(reconnects.restarts());
    all.filter(|(_, count)| *count > 0).collect()
}

#[tokio::test(start_paused = true)]
async fn watches_that_resume_are_counted_by_the_end_of_the_last_one() {
    let mut fixture = Fixture::listed(&[]).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("ADDED", &foo("a", 11));
    settle().await;
    assert_eq!(counts(&fixture), []);
    watch.end();
    let silent = fixture.server.expect_watch(11).await.watch();
    let broken = fixture.server.expect_watch(11).await.watch();
    broken.bookmark(12);
    broken.cut();
    fixture.server.expect_watch(12).await.refuse();
    fixture.server.expect_watch(12).await.watch().end();
    fixture.server.expect_watch(12).await;
    drop(silent);
    assert_eq!(
        counts(&fixture),
        [
            ("closed", 1),
            ("ended_at_once", 1),
            ("idle", 1),
            ("broken", 1),
            ("rejected", 1)
        ]
    );
    assert_eq!(fixture.reporter.status().resource_version, Some(12));
}

#[tokio::test(start_paused = true)]
async fn lists_after_the_first_are_counted_by_reason() {
    let mut fixture = Fixture::new();
    fixture.server.expect_list().await.refuse();
    fixture.answer_list(&list(10, &[])).await;
    let watch = fixture.server.expect_watch(10).await.watch();
    watch.event("ERROR", &status(410, "Expired"));
    fixture.answer_list(&list(20, &[])).await;
    let watch = fixture.server.expect_watch(20).await.watch();
    watch.text("not JSON\n");
    fixture.answer_list(&list(30, &[])).await;
    fixture.server.expect_watch(30).await;
    assert_eq!(
        counts(&fixture),
        [("expired", 1), ("watch_failed", 1), ("list_failed", 1)]
    );
}
