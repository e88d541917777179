//! Tests that a panic of a handler does not affect other handlers.

use super::*;

/// Returns a handler that panics while `panics` is set, and otherwise logs the change.
fn panicking(changes: &ChangeLog, panics: &Arc<AtomicBool>) -> impl Fn(&Delta<Foo>) + Send + Sync + 'static {
    let (handler, panics) = (changes.handler(), Arc::clone(panics));
    move |delta| {
        assert!(!panics.load(Ordering::Relaxed), "the test makes this panic");
        handler(delta);
    }
}

fn report(fixture: &Fixture) -> Report {
    fixture.factory.reports().remove(1)
}

#[tokio::test(start_paused = true)]
async fn a_panicking_handler_affects_no_other_and_gets_the_changes_again() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let (first, second) = (ChangeLog::default(), ChangeLog::default());
    let panics = Arc::new(AtomicBool::new(true));
    let _first = informer.subscribe(panicking(&first, &panics));
    let _second = informer.subscribe(second.handler());
    let watch = fixture.sync(&[foo("a", 1), foo("b", 2)]).await;
    assert!(informer.is_synced());
    assert_eq!(second.take(), ["added a@1 Listed", "added b@2 Listed"]);
    assert!(first.take().is_empty());
    let failure = report(&fixture).failure.unwrap();
    assert!(failure.message.starts_with("a handler panicked"), "{failure:?}");
    // Other handlers receive later changes at once.
    watch.event("MODIFIED", &foo("a", 3));
    watch.event("DELETED", &foo("b", 4));
    settle().await;
    assert_eq!(second.take(), ["deleted b@4 Watched", "updated a@3 Watched"]);
    panics.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(first.take(), ["deleted b@2 Watched", "updated a@3 Watched"]);
    assert!(
        second.take().is_empty(),
        "the change was redelivered to another handler"
    );
    assert!(report(&fixture).failure.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_in_a_resync_receives_later_changes() {
    let mut fixture = Fixture::with_config(InformerConfig {
        resync_period: Some(Duration::from_mins(1)),
        idle_timeout: Duration::from_hours(24),
        ..InformerConfig::default()
    })
    .await;
    let informer = fixture.informer();
    let changes = ChangeLog::default();
    let panics = Arc::new(AtomicBool::new(false));
    let _subscription = informer.subscribe(panicking(&changes, &panics));
    let watch = fixture.sync(&[foo("a", 1)]).await;
    panics.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(2)).await;
    panics.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(3)).await;
    changes.take();
    watch.event("MODIFIED", &foo("a", 3));
    settle().await;
    assert_eq!(changes.take(), ["updated a@3 Watched"]);
}
