//! Tests of one watch with several readers.

use super::*;
use crate::{Cache, Event, Sink};

const METADATA: &str = "as=PartialObjectMetadata";

/// The reader of a model of its own, which logs its events.
#[derive(Clone, Default)]
struct Model(Arc<Mutex<Vec<String>>>);

impl Sink for Model {
    type Object = MetadataOnly;

    fn apply(&mut self, event: Event<MetadataOnly>) {
        self.0.lock().push(match event {
            Event::Relisting => "relisting".to_owned(),
            Event::Listed(object) => format!("listed {}", print(&object)),
            Event::Applied(object) => format!("applied {}", print(&object)),
            Event::Deleted(object) => format!("deleted {}", print(&object)),
            Event::Synced => "synced".to_owned(),
            Event::Undecodable { key, .. } => format!("undecodable {key}"),
            Event::DeletedUndecodable(key) => format!("deleted undecodable {key}"),
        });
    }
}

impl Model {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

fn is_metadata(call: &Call) -> bool {
    call.accept.as_deref().is_some_and(|accept| accept.contains(METADATA))
}

#[tokio::test(start_paused = true)]
async fn all_projections_of_a_resource_share_one_list_and_one_watch() {
    let mut fixture = Fixture::new().await;
    let (typed, names) = (fixture.informer(), fixture.factory.informer::<MetadataOnly>(foos()));
    let model = Model::default();
    let _reader = fixture.factory.shared_watches().attach(foos(), model.clone());
    let request = fixture.foos().await;
    assert!(!is_metadata(&request), "the typed informer needs whole objects");
    request.answer(&list(10, &[foo("a", 1)]));
    let request = fixture.foos().await;
    assert!(!is_metadata(&request), "the typed informer needs whole objects");
    let watch = request.watch();
    watch.event("ADDED", &foo("b", 11));
    settle().await;
    assert_eq!((typed.list().len(), names.list().len()), (2, 2));
    assert_eq!(model.take(), ["relisting", "listed a@1", "synced", "applied b@11"]);
    fixture.server.expect_silence(Duration::from_secs(10)).await;
    let names: Vec<_> = fixture
        .factory
        .reports()
        .into_iter()
        .map(|report| report.name)
        .collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn readers_of_metadata_receive_only_metadata() {
    let mut fixture = Fixture::new().await;
    let names = fixture.factory.informer::<MetadataOnly>(foos());
    let _reader = fixture.factory.shared_watches().attach(foos(), Model::default());
    let request = fixture.foos().await;
    assert!(is_metadata(&request));
    request.answer(&list(10, &[foo("a", 1)]));
    assert!(is_metadata(&fixture.foos().await));
    assert_eq!(names.list().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn other_selectors_have_a_watch_of_their_own() {
    let mut fixture = Fixture::new().await;
    let _all = fixture.informer();
    let _labelled = fixture.factory.informer::<Foo>(Watch {
        labels: "app=x".to_owned(),
        ..foos()
    });
    let mut calls = [fixture.foos().await, fixture.foos().await].map(|call| call.query.contains_key("labelSelector"));
    calls.sort_unstable();
    assert_eq!(calls, [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_late_reader_causes_one_list_that_changes_nothing_for_the_others() {
    let mut fixture = Fixture::new().await;
    let typed = fixture.informer();
    let changes = ChangeLog::default();
    let _subscription = typed.subscribe(changes.handler());
    let watch = fixture.sync(&[foo("a", 1)]).await;
    changes.take();
    let model = Model::default();
    let _reader = fixture.factory.shared_watches().attach(foos(), model.clone());
    let names = fixture.factory.informer::<MetadataOnly>(foos());
    assert!(!names.is_synced());
    let new = fixture.sync(&[foo("a", 1)]).await;
    assert!(watch.is_abandoned());
    names.wait_for_sync(Duration::from_secs(1)).await.unwrap();
    assert_eq!(model.take(), ["relisting", "listed a@1", "synced"]);
    assert!(changes.take().is_empty(), "the list changed nothing");
    new.event("MODIFIED", &foo("a", 11));
    settle().await;
    assert_eq!(changes.take(), ["updated a@11 Watched"]);
    fixture.server.expect_silence(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_comes_before_the_first_page_causes_no_list() {
    let mut fixture = Fixture::new().await;
    let typed = fixture.informer();
    let request = fixture.foos().await;
    let model = Model::default();
    let _reader = fixture.factory.shared_watches().attach(foos(), model.clone());
    request.answer(&list(10, &[foo("a", 1)]));
    assert!(fixture.foos().await.is_watch());
    settle().await;
    assert_eq!(model.take(), ["relisting", "listed a@1", "synced"]);
    assert!(typed.is_synced());
}

/// The list in progress contains only metadata, so a reader of whole objects needs another one.
#[tokio::test(start_paused = true)]
async fn a_late_reader_of_whole_objects_waits_for_a_list_of_them() {
    let mut fixture = Fixture::new().await;
    let model = Model::default();
    let _reader = fixture.factory.shared_watches().attach(foos(), model.clone());
    let request = fixture.foos().await;
    assert!(is_metadata(&request));
    let typed = fixture.informer();
    request.answer(&list(10, &[foo("a", 1)]));
    let request = fixture.foos().await;
    assert!(!request.is_watch() && !is_metadata(&request));
    assert!(!typed.is_synced());
    request.answer(&list(11, &[foo("a", 1)]));
    let request = fixture.foos().await;
    assert!(request.is_watch() && !is_metadata(&request));
    let watch = request.watch();
    settle().await;
    assert!(typed.is_synced());
    // Without the informer, metadata is enough from the next request on.
    drop(typed);
    watch.end();
    assert!(is_metadata(&fixture.foos().await));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_one_reader_cannot_decode_reaches_the_others() {
    let mut fixture = Fixture::new().await;
    let (typed, names) = (fixture.informer(), fixture.factory.informer::<MetadataOnly>(foos()));
    let watch = fixture.sync(&[bad_foo("bad", 1), foo("good", 2)]).await;
    assert_eq!((typed.list().len(), names.list().len()), (1, 2));
    watch.event("ADDED", &bad_foo("worse", 11));
    watch.event("DELETED", &bad_foo("bad", 12));
    settle().await;
    let found: Vec<_> = names.list().iter().map(|object| print(&**object)).collect();
    assert!(found.len() == 2 && found.contains(&"worse@11".to_owned()), "{found:?}");
    let report = &fixture.factory.reports()[1];
    let undecodable: Vec<_> = report.undecodable.iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!((undecodable, report.objects), (vec!["n/worse".to_owned()], 2));
    // The watch resumes after the undecodable object.
    watch.end();
    fixture.server.expect_watch(12).await;
}

/// A reader that panics on objects while `panics` is set.
#[derive(Clone, Default)]
struct Panicking {
    panics: Arc<AtomicBool>,
    model: Model,
}

impl Sink for Panicking {
    type Object = MetadataOnly;

    fn apply(&mut self, event: Event<MetadataOnly>) {
        let has_object = matches!(event, Event::Listed(_) | Event::Applied(_));
        assert!(
            !(has_object && self.panics.load(Ordering::Relaxed)),
            "the test makes this panic"
        );
        self.model.apply(event);
    }
}

/// The others sync and receive every change, and the loop lists again for the one that panicked.
#[tokio::test(start_paused = true)]
async fn a_reader_that_panics_affects_no_other() {
    let mut fixture = Fixture::new().await;
    let panicking = Panicking::default();
    panicking.panics.store(true, Ordering::Relaxed);
    let reader = fixture.factory.shared_watches().attach(foos(), panicking.clone());
    let typed = fixture.informer();
    let watch = fixture.sync(&[foo("a", 1)]).await;
    assert!(typed.is_synced() && typed.list().len() == 1);
    let failed = tokio::time::Instant::now();
    let failure = reader.status().failure().expect("the reader panicked");
    assert!(failure.message.starts_with("the sink panicked"), "{failure:?}");
    watch.event("ADDED", &foo("b", 11));
    settle().await;
    assert_eq!(typed.list().len(), 2);
    assert!(fixture.factory.reports()[1].failure.is_none());
    // The contact of the reader that panicked does not advance, so it becomes stale.
    assert!(reader.status().last_contact().is_some_and(|contact| contact <= failed));
    panicking.panics.store(false, Ordering::Relaxed);
    let list = fixture.foos().await;
    assert!(
        !list.is_watch() && list.at >= failed + Duration::from_secs(29),
        "{list:?}"
    );
    list.answer(&crate::scripted::list(12, &[foo("a", 1), foo("b", 11)]));
    let _watch = fixture.foos().await.watch();
    settle().await;
    let events = panicking.model.take();
    assert_eq!(
        events[events.len() - 4..],
        ["relisting", "listed a@1", "listed b@11", "synced"]
    );
    assert!(reader.status().failure().is_none());
}

/// An informer whose index function panics must not count as up to date.
#[tokio::test(start_paused = true)]
async fn an_informer_that_panics_becomes_stale_while_others_share_its_watch() {
    let mut fixture = Fixture::new().await;
    let _healthy = fixture.factory.informer::<MetadataOnly>(foos());
    let typed = fixture.informer();
    let watch = fixture.sync(&[foo("a", 1)]).await;
    let _index = typed.index("panicking", |object: &Foo| {
        assert_ne!(&*object.metadata.resource_version, "11", "the test makes this panic");
        Vec::new()
    });
    watch.event("MODIFIED", &foo("a", 11));
    settle().await;
    let before = fixture.factory.reports()[1].last_contact;
    tokio::time::sleep(Duration::from_secs(5)).await;
    watch.event("ADDED", &foo("b", 12));
    settle().await;
    let report = &fixture.factory.reports()[1];
    assert_eq!(report.last_contact, before);
    assert!(
        report
            .failure
            .as_ref()
            .is_some_and(|failure| failure.message.starts_with("the sink panicked"))
    );
}

/// The list in progress has only metadata, although a reader of whole objects was there at first.
#[tokio::test(start_paused = true)]
async fn a_list_keeps_its_mode_when_a_reader_leaves() {
    let mut fixture = Fixture::new().await;
    let _names = fixture.factory.informer::<MetadataOnly>(foos());
    let typed = fixture.informer();
    fixture
        .foos()
        .await
        .answer(&crate::scripted::page(10, "p2", &[foo("a", 1)]));
    let second = fixture.foos().await;
    drop(typed);
    second.answer_text(500, "");
    let again = fixture.foos().await;
    assert!(!is_metadata(&again), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_detached_reader_receives_nothing_and_the_watch_ends_with_the_last_one() {
    let mut fixture = Fixture::new().await;
    let (kept, model) = (Model::default(), Model::default());
    let kept_reader = fixture.factory.shared_watches().attach(foos(), kept.clone());
    let reader = fixture.factory.shared_watches().attach(foos(), model.clone());
    let watch = fixture.sync(&[foo("a", 1)]).await;
    model.take();
    reader.detach();
    drop(reader);
    assert_eq!(Arc::strong_count(&model.0), 1, "the sink still exists");
    watch.event("MODIFIED", &foo("a", 11));
    settle().await;
    assert!(model.take().is_empty());
    assert_eq!(kept.take().last().map(String::as_str), Some("applied a@11"));
    drop(kept_reader);
    settle().await;
    assert!(watch.is_abandoned());
}

#[tokio::test(start_paused = true)]
async fn a_term_of_one_informer_lists_once_for_all() {
    let mut fixture = Fixture::new().await;
    let (typed, names) = (fixture.informer(), fixture.factory.informer::<MetadataOnly>(foos()));
    let _watch = fixture.sync(&[foo("a", 1)]).await;
    typed.begin_term();
    names.begin_term();
    let _watch = fixture.sync(&[foo("a", 2)]).await;
    for synced in [
        typed.wait_for_sync(Duration::from_secs(1)).await,
        names.wait_for_sync(Duration::from_secs(1)).await,
    ] {
        synced.unwrap();
    }
    fixture.server.expect_silence(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn only_informers_of_all_objects_are_informer_resources() {
    let fixture = Fixture::new().await;
    let _single = fixture.factory.informer::<Foo>(Watch {
        fields: "metadata.name=x".to_owned(),
        ..foos()
    });
    let _model = fixture.factory.shared_watches().attach(foos(), Model::default());
    assert_eq!(fixture.factory.shared_watches().informer_resources(), [CRDS]);
    let _typed = fixture.informer();
    let mut plurals: Vec<_> = fixture.factory.shared_watches().informer_resources();
    plurals.sort_by(|a, b| a.plural.cmp(&b.plural));
    assert_eq!(plurals, [CRDS, crate::scripted::FOOS]);
}

/// A reader that only looks at metadata must not fail readiness.
#[tokio::test(start_paused = true)]
async fn reports_do_not_mention_a_watch_without_informers() {
    let mut fixture = Fixture::new().await;
    let _reader = fixture.factory.shared_watches().attach(foos(), Model::default());
    fixture.foos().await.answer(&status(403, "Forbidden"));
    settle().await;
    assert_eq!(fixture.factory.reports().len(), 1);
    let _typed = fixture.informer();
    let reports = fixture.factory.reports();
    assert!(!reports[1].synced && reports[1].failure.is_some(), "{reports:?}");
}
