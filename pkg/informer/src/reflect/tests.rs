//! Tests of the loop with a recording sink and a scripted apiserver in paused time: which requests
//! it sends, and how it handles the responses.

mod backoff;
mod list;
mod reconnects;
mod recovery;
mod versions;
mod watch;

use std::sync::{OnceLock, atomic::AtomicBool};

use parking_lot::Mutex;
use portreeve_client::Outage;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::{
    Event, Sink, StatusReporter,
    readers::{ModelState, Reader},
    scripted::{Call, Foo, Server, foo, foos, list, page, print, settle, status},
    shared_watch::CrdSignal,
};

/// A running loop, the events of its sink, and its server.
struct Fixture {
    server: Server,
    events: Arc<Mutex<Vec<String>>>,
    reporter: StatusReporter,
    crd_signal: CrdSignal,
    version_decreases: tokio::sync::watch::Sender<u64>,
    /// Whether the sink panics on the next event.
    panics: Arc<AtomicBool>,
    /// Stops the loop at the end of the test.
    _loop: JoinSet<()>,
}

/// A sink that records events, one line each.
struct Recorder {
    events: Arc<Mutex<Vec<String>>>,
    panics: Arc<AtomicBool>,
}

impl Sink for Recorder {
    type Object = Foo;

    fn apply(&mut self, event: Event<Foo>) {
        let line = match event {
            Event::Relisting => "relisting".to_owned(),
            Event::Listed(object) => format!("listed {}", print(&object)),
            Event::Synced => "synced".to_owned(),
            Event::Applied(object) => format!("applied {}", print(&object)),
            Event::Deleted(object) => format!("deleted {}", print(&object)),
            Event::Undecodable { key, error, .. } => format!("undecodable {key}: {error}"),
            Event::DeletedUndecodable(key) => format!("deleted undecodable {key}"),
        };
        assert!(!self.panics.swap(false, Ordering::Relaxed), "the test makes this panic");
        self.events.lock().push(line);
    }
}

impl Fixture {
    fn new() -> Self {
        Self::with_idle_timeout(Duration::from_secs(90))
    }

    fn with_idle_timeout(idle_timeout: Duration) -> Self {
        Self::start(idle_timeout, Arc::default())
    }

    /// Starts a loop whose readers decode several versions.
    fn with_versions(versions: &'static [&'static str]) -> Self {
        Self::start(Duration::from_secs(90), Arc::new(OnceLock::from(versions)))
    }

    fn start(idle_timeout: Duration, versions: Arc<OnceLock<&'static [&'static str]>>) -> Self {
        let (client, server) = Server::start();
        let events = Arc::new(Mutex::new(Vec::new()));
        let (reporter, crd_signal) = (StatusReporter::default(), CrdSignal::default());
        let panics = Arc::<AtomicBool>::default();
        let version_decreases = tokio::sync::watch::Sender::new(0);
        let reflector_config = ReflectorConfig {
            client,
            watch: foos(),
            page_size: 500,
            idle_timeout,
            reporter: reporter.clone(),
            crd_signal: crd_signal.clone(),
            versions,
            terms: tokio::sync::watch::channel(0).1,
            version_decreases: version_decreases.clone(),
            loops: Arc::default(),
            outage: Outage::default(),
        };
        let recorder = Recorder {
            events: Arc::clone(&events),
            panics: Arc::clone(&panics),
        };
        let mut tasks = JoinSet::new();
        let readers = Arc::<Readers>::default();
        readers.attach(Reader::required(recorder, ModelState::default));
        tasks.spawn(reflect(reflector_config, readers));
        Self {
            server,
            events,
            reporter,
            crd_signal,
            version_decreases,
            panics,
            _loop: tasks,
        }
    }

    /// Starts a loop and completes its first list, with these objects at version 10.
    async fn listed(items: &[Value]) -> Self {
        let mut fixture = Self::new();
        fixture.answer_list(&list(10, items)).await;
        settle().await;
        fixture.events();
        fixture
    }

    /// Responds to the next request, which must be a list.
    async fn answer_list(&mut self, body: &Value) {
        self.server.expect_list().await.answer(body);
    }

    /// Responds to the next request, which must be a list, with a 404 for the whole resource.
    async fn answer_list_with_404(&mut self) {
        let call = self.server.expect_list().await;
        call.answer_text(404, "404 page not found\n");
    }

    /// Returns the events of the sink since the last call.
    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock())
    }

    fn failure(&self) -> Option<String> {
        self.reporter.status().failure.map(|failure| failure.message)
    }

    /// Returns how long after `then` the next request was sent, and the request.
    async fn after(&mut self, then: Instant) -> (Duration, Call) {
        let call = self.server.call().await;
        (call.at - then, call)
    }
}
