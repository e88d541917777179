//! Tests of the sink: which events queue a namespace.

use std::sync::Arc;

use portreeve_api::Metadata;
use portreeve_metrics::Registry;
use portreeve_workqueue::{Metrics, Outcome};

use super::*;

struct Fixture {
    sink: ContentSink,
    queue: Queue<Arc<str>>,
}

impl Fixture {
    fn new(waiting: &[&str]) -> Self {
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let queue = Queue::new("namespace", &metrics);
        let waiting: HashSet<Arc<str>> = waiting.iter().map(|name| (*name).into()).collect();
        let sink = ContentSink {
            queue: queue.clone(),
            waiting: Arc::new(Mutex::new(waiting)),
            known: HashMap::new(),
            listed: None,
        };
        Self { sink, queue }
    }

    /// Returns whether a namespace is queued, and takes it.
    async fn is_queued(&self) -> bool {
        if self.queue.observe().ready == 0 {
            return false;
        }
        self.queue.take().await.unwrap().finish(Outcome::Forget);
        true
    }
}

fn object(namespace: &str, uid: &str, is_terminating: bool) -> MetadataOnly {
    MetadataOnly {
        metadata: Metadata {
            namespace: Some(namespace.into()),
            uid: uid.into(),
            deletion_timestamp: is_terminating.then_some(jiff::Timestamp::UNIX_EPOCH),
            ..Metadata::default()
        },
    }
}

#[tokio::test]
async fn the_deletion_of_the_last_object_queues_its_namespace() {
    let mut fixture = Fixture::new(&["a"]);
    for uid in ["1", "2"] {
        fixture.sink.apply(Event::Applied(object("a", uid, true)));
    }
    fixture.sink.apply(Event::Deleted(object("a", "1", true)));
    assert!(!fixture.is_queued().await);
    fixture.sink.apply(Event::Deleted(object("a", "2", true)));
    assert!(fixture.is_queued().await);
    // Objects that the watch has not seen count as the last ones.
    fixture.sink.apply(Event::Deleted(object("a", "3", false)));
    assert!(fixture.is_queued().await);
}

#[tokio::test]
async fn other_namespaces_are_not_queued() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.sink.apply(Event::Applied(object("b", "1", true)));
    fixture.sink.apply(Event::Deleted(object("b", "1", true)));
    assert!(!fixture.is_queued().await);
    assert!(fixture.sink.known.is_empty());
}

#[tokio::test]
async fn a_list_without_the_objects_queues_their_namespace() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.sink.apply(Event::Relisting);
    fixture.sink.apply(Event::Listed(object("a", "1", true)));
    fixture.sink.complete(0, Some("1"));
    assert!(!fixture.is_queued().await);
    fixture.sink.apply(Event::Relisting);
    fixture.sink.complete(0, Some("2"));
    assert!(fixture.is_queued().await);
}
