//! Tests of a new term: only a list that starts in it completes the sync.

use super::*;
use crate::Cache;

#[tokio::test(start_paused = true)]
async fn a_new_term_lists_again_and_a_sync_waits_for_that_list() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let changes = ChangeLog::default();
    let _subscription = informer.subscribe(changes.handler());
    let watch = fixture.sync(&[foo("a", 1), foo("b", 2)]).await;
    changes.take();
    informer.begin_term();
    let limit = Duration::from_secs(1);
    let (synced, _watch) = tokio::join!(informer.wait_for_sync(limit), async {
        // The list contains the last update and deletion of the previous leader, which the watch
        // had not sent yet.
        fixture.sync(&[foo("a", 3)]).await
    });
    synced.unwrap();
    assert!(watch.is_abandoned());
    assert_eq!(changes.take(), ["deleted b@2 Relisted", "updated a@3 Relisted"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_started_before_the_term_does_not_count() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let old = fixture.foos().await;
    informer.begin_term();
    let _watch = fixture.sync(&[foo("a", 2)]).await;
    old.answer(&list(1, &[foo("a", 1)]));
    informer.wait_for_sync(Duration::from_secs(1)).await.unwrap();
    let found: Vec<_> = informer.list().iter().map(|foo| print(&**foo)).collect();
    assert_eq!(found, ["a@2"]);
}

#[tokio::test(start_paused = true)]
async fn a_loop_in_backoff_lists_at_once_in_a_new_term() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    for _ in 0..8 {
        fixture.foos().await.answer(&status(503, "ServiceUnavailable"));
    }
    settle().await;
    informer.begin_term();
    let begun = tokio::time::Instant::now();
    let _watch = fixture.sync(&[foo("a", 1)]).await;
    informer.wait_for_sync(Duration::from_secs(1)).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}
