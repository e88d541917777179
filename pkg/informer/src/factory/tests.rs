//! Tests of sharing, subscriptions and shutdown, with a scripted apiserver in paused time.

mod definitions;
mod panics;
mod sharing;
mod terms;

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::*;
use crate::{
    Change, Delta, Index, Subscription, indexes,
    scripted::{Call, DEFINITIONS, Foo, ResponseBody, Server, bad_foo, foo, foos, list, print, settle, status},
};

const FOOS: &str = "/apis/samplecontroller.k8s.io/v1alpha1/foos";

/// A factory whose watch on CRDs is open, and its server.
struct Fixture {
    server: Server,
    factory: Factory,
    definitions: ResponseBody,
}

impl Fixture {
    async fn new() -> Self {
        Self::with_config(InformerConfig::default()).await
    }

    async fn with_config(informer_config: InformerConfig) -> Self {
        let (client, mut server) = Server::start();
        let factory = Factory::new(client, informer_config);
        server.call_for(DEFINITIONS).await.answer(&list(1, &[]));
        let definitions = server.call_for(DEFINITIONS).await.watch();
        Self {
            server,
            factory,
            definitions,
        }
    }

    fn informer(&self) -> Informer<Foo> {
        self.factory.informer(foos())
    }

    /// Returns the next request for Foos.
    async fn foos(&mut self) -> Call {
        self.server.call_for(FOOS).await
    }

    /// Responds to the list with these objects and opens the watch.
    async fn sync(&mut self, items: &[serde_json::Value]) -> ResponseBody {
        self.foos().await.answer(&list(10, items));
        let watch = self.foos().await.watch();
        settle().await;
        watch
    }
}

/// The changes that a subscriber received, one line each.
#[derive(Clone, Default)]
struct ChangeLog(Arc<Mutex<Vec<String>>>);

impl ChangeLog {
    fn handler(&self) -> impl Fn(&Delta<Foo>) + Send + Sync + 'static {
        let changes = self.clone();
        move |delta| {
            let word = match &delta.change {
                Change::Added(_) => "added",
                Change::Updated { .. } => "updated",
                Change::Deleted { .. } => "deleted",
            };
            let line = format!("{word} {} {:?}", print(&**delta.change.object()), delta.cause);
            changes.0.lock().push(line);
        }
    }

    /// Returns the lines since the last call, sorted because subscribers receive the objects of a
    /// list in any order.
    fn take(&self) -> Vec<String> {
        let mut lines = std::mem::take(&mut *self.0.lock());
        lines.sort();
        lines
    }
}

#[tokio::test(start_paused = true)]
async fn equal_watches_share_one_informer() {
    let mut fixture = Fixture::new().await;
    let (first, second) = (fixture.informer(), fixture.informer());
    let _watch = fixture.sync(&[foo("a", 1)]).await;
    let third = fixture.informer();
    for informer in [&first, &second, &third] {
        assert_eq!(informer.list().len(), 1);
    }
    // There was only one list and one watch.
    fixture.server.expect_silence(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_subscriber_receives_every_object_once() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let early = ChangeLog::default();
    let _early = informer.subscribe(early.handler());
    let watch = fixture.sync(&[foo("a", 1), foo("b", 2)]).await;
    assert_eq!(early.take(), ["added a@1 Listed", "added b@2 Listed"]);
    let late = ChangeLog::default();
    let _late = informer.subscribe(late.handler());
    assert_eq!(late.take(), ["added a@1 Replayed", "added b@2 Replayed"]);
    watch.event("MODIFIED", &foo("a", 3));
    watch.event("DELETED", &foo("b", 4));
    settle().await;
    let live = ["deleted b@4 Watched", "updated a@3 Watched"];
    assert_eq!(
        (early.take(), late.take()),
        (live.map(String::from).into(), live.map(String::from).into())
    );
}

/// Dropping a handler also drops the values that it captures, such as another subscription of the
/// same informer.
#[tokio::test(start_paused = true)]
async fn a_handler_may_own_another_subscription_of_the_same_informer() {
    let fixture = Fixture::new().await;
    let informer = fixture.informer();
    let inner: Subscription = informer.subscribe(|_| {});
    let outer = informer.subscribe(move |_| {
        let _ = &inner;
    });
    drop(outer);
}

#[tokio::test(start_paused = true)]
async fn handlers_see_the_change_in_the_store_and_may_read_any_store() {
    let mut fixture = Fixture::new().await;
    let (informer, names) = (fixture.informer(), fixture.factory.informer::<MetadataOnly>(foos()));
    let index: Index<Foo> = informer.index("namespace", indexes::by_namespace);
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let (seen, own, other) = (Arc::clone(&sizes), informer.clone(), names.clone());
    let subscription = informer.subscribe(move |delta| {
        let found = own.get(&delta.key()).is_some();
        seen.lock()
            .push((found, own.list().len(), index.get("n").len(), other.list().len()));
    });
    let watch = fixture.sync(&[foo("a", 1)]).await;
    sizes.lock().clear();
    watch.event("DELETED", &foo("a", 2));
    settle().await;
    let (found, own, indexed, _) = sizes.lock()[0];
    assert_eq!((found, own, indexed), (false, 0, 0));
    drop(subscription);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_ends_the_watch() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let clone = informer.clone();
    let index = informer.index("namespace", indexes::by_namespace);
    let subscription = informer.subscribe(|_| {});
    let watch = fixture.sync(&[]).await;
    drop(informer);
    drop(clone);
    settle().await;
    assert!(!watch.is_abandoned(), "the watch ended although an index exists");
    drop(index);
    settle().await;
    assert!(watch.is_abandoned(), "a subscription kept the watch open");
    drop(subscription);
    assert_eq!(
        fixture.factory.reports().len(),
        1,
        "reports other than the one on definitions"
    );
}

#[tokio::test(start_paused = true)]
async fn an_informer_requested_after_the_last_drop_works() {
    let mut fixture = Fixture::new().await;
    let first = fixture.informer();
    let _watch = fixture.sync(&[foo("a", 1)]).await;
    drop(first);
    let second = fixture.informer();
    let watch = fixture.sync(&[foo("a", 1), foo("b", 2)]).await;
    assert!(second.is_synced());
    assert_eq!(second.list().len(), 2);
    assert!(!watch.is_abandoned());
}

#[tokio::test(start_paused = true)]
async fn a_sync_timeout_names_the_informer_and_the_reason() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let limit = Duration::from_millis(50);
    let error = informer.wait_for_sync(limit).await.unwrap_err().to_string();
    let name = "foos.v1alpha1.samplecontroller.k8s.io";
    assert_eq!(
        error,
        format!("informer {name} did not sync within 50ms: the list is not complete")
    );
    fixture.foos().await.answer(&status(403, "Forbidden"));
    let error = informer.wait_for_sync(limit).await.unwrap_err().to_string();
    assert_eq!(
        error,
        format!("informer {name} did not sync within 50ms: failed to list: it is Forbidden (Forbidden)")
    );
    assert!(!informer.is_synced());
    let _watch = fixture.sync(&[]).await;
    informer.wait_for_sync(limit).await.unwrap();
    assert!(informer.is_synced());
}

#[tokio::test(start_paused = true)]
async fn subscribers_receive_every_change_before_the_sync_completes() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let changes = ChangeLog::default();
    let _subscription = informer.subscribe(changes.handler());
    let waiting = informer.wait_for_sync(Duration::from_secs(1));
    let call = fixture.foos().await;
    let (synced, ()) = tokio::join!(waiting, async { call.answer(&list(10, &[foo("a", 1), foo("b", 2)])) });
    synced.unwrap();
    assert_eq!(changes.take().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_resync_sends_every_object_to_every_subscriber() {
    let period = Duration::from_mins(10);
    let mut fixture = Fixture::with_config(InformerConfig {
        resync_period: Some(period),
        // The watch stays silent during the test.
        idle_timeout: Duration::from_hours(24),
        ..InformerConfig::default()
    })
    .await;
    let informer = fixture.informer();
    let (first, second) = (ChangeLog::default(), ChangeLog::default());
    let _subscriptions = [
        informer.subscribe(first.handler()),
        informer.subscribe(second.handler()),
    ];
    let _watch = fixture.sync(&[foo("a", 1), foo("b", 2)]).await;
    first.take();
    second.take();
    tokio::time::sleep(Duration::from_secs(599)).await;
    assert!(first.take().is_empty(), "the resync came before the period had passed");
    tokio::time::sleep(Duration::from_secs(602)).await;
    for changes in [&first, &second] {
        assert_eq!(changes.take(), ["updated a@1 Resynced", "updated b@2 Resynced"]);
    }
}

#[tokio::test(start_paused = true)]
async fn reports_show_the_state_of_each_watch() {
    let mut fixture = Fixture::new().await;
    let _informer = fixture.informer();
    let _watch = fixture.sync(&[foo("a", 1), bad_foo("b", 2)]).await;
    let reports = fixture.factory.reports();
    let names: Vec<_> = reports.iter().map(|report| report.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "customresourcedefinitions.v1.apiextensions.k8s.io",
            "foos.v1alpha1.samplecontroller.k8s.io"
        ]
    );
    assert!(reports[0].synced && reports[1].synced);
    assert_eq!(reports[1].objects, 1);
    let (key, error) = &reports[1].undecodable[0];
    assert_eq!(key.to_string(), "n/b");
    assert!(error.starts_with("spec.replicas: "), "{error}");
    assert!(reports[1].failure.is_none() && reports[1].last_contact.is_some());
}

#[tokio::test(start_paused = true)]
async fn stop_returns_when_every_watch_has_ended() {
    let mut fixture = Fixture::new().await;
    let informer = fixture.informer();
    let watch = fixture.sync(&[foo("a", 1)]).await;
    fixture.factory.stop().await;
    // The test does not call `settle`: the watches have already ended when `stop` returns.
    assert!(watch.is_abandoned() && fixture.definitions.is_abandoned());
    assert!(fixture.factory.0.tasks.is_empty());
    assert_eq!(informer.list().len(), 1);
    // A request after the stop is harmless.
    let _late = fixture.factory.informer::<MetadataOnly>(foos());
    fixture.factory.stop().await;
    fixture.server.expect_silence(Duration::from_mins(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_during_a_list_abandons_the_request() {
    let mut fixture = Fixture::new().await;
    let _informer = fixture.informer();
    let call = fixture.foos().await;
    fixture.factory.stop().await;
    assert!(call.is_abandoned());
}

#[tokio::test(start_paused = true)]
async fn the_watch_on_crds_ends_with_the_factory() {
    let Fixture {
        server: _server,
        factory,
        definitions,
    } = Fixture::new().await;
    drop(factory);
    settle().await;
    assert!(definitions.is_abandoned());
}
