//! Creates informers and deduplicates them by watch.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::Client;
use parking_lot::Mutex;
use portreeve_api::CRDS;
use tokio::sync::{Notify, watch};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::Instrument;

use crate::{
    Change, Event, Informer, MetadataOnly, Projection, ReflectorConfig, Report, Sink, StatusReporter, Store, Watch,
    informer::{Core, Handle},
    reflect,
};

/// The configuration of all informers of a factory.
#[derive(Clone, Debug)]
pub struct InformerConfig {
    /// How long a watch may receive nothing before its connection counts as dead. The apiserver
    /// sends a bookmark about once a minute, except for a resource that has not changed since the
    /// apiserver started.
    pub idle_timeout: Duration,
    /// The number of objects in one page of a list.
    pub page_size: u32,
    /// The minimum period between two resyncs, in which subscribers receive every object again.
    /// Each interval is random, between one and two periods. `None` disables resyncs.
    pub resync_period: Option<Duration>,
}

impl InformerConfig {
    /// Returns how long a watch may be without contact before its store counts as stale. This is
    /// 4/3 of `idle_timeout`, which leaves time to reconnect.
    pub fn stale_after(&self) -> Duration {
        self.idle_timeout + self.idle_timeout / 3
    }
}

impl Default for InformerConfig {
    fn default() -> Self {
        Self {
            idle_timeout: Duration::from_secs(90),
            page_size: 500,
            resync_period: None,
        }
    }
}

/// Creates informers, shares them, and stops them. Cheap to clone.
#[derive(Clone)]
pub struct Factory(Arc<Inner>);

struct Inner {
    client: Client,
    informer_config: InformerConfig,
    shared: Mutex<HashMap<(TypeId, Watch), Entry>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    definitions: StatusReporter,
    _ends_definitions: DropGuard,
}

struct Entry {
    name: String,
    handle: Weak<dyn Any + Send + Sync>,
    report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    definition: DefinitionSignal,
}

/// Notifies a list-and-watch loop about the CustomResourceDefinition of its resource.
#[derive(Clone, Default)]
struct DefinitionSignal {
    wake: Arc<Notify>,
    definition_deleted: Arc<AtomicBool>,
}

impl DefinitionSignal {
    fn notify(&self, gone: bool) {
        self.definition_deleted.store(gone, Ordering::Relaxed);
        self.wake.notify_waiters();
    }
}

impl Factory {
    /// Creates a factory whose watches use `client`.
    ///
    /// It starts one watch on CustomResourceDefinitions, which ends with the factory. Must be
    /// called within a Tokio runtime.
    pub fn new(client: Client, informer_config: InformerConfig) -> Self {
        let stop = CancellationToken::new();
        let ended = stop.child_token();
        let inner = Arc::new(Inner {
            client,
            informer_config,
            shared: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
            definitions: StatusReporter::default(),
            _ends_definitions: ended.clone().drop_guard(),
        });
        let definitions = Definitions {
            inner: Arc::downgrade(&inner),
            known: Store::default(),
        };
        // No Lease guards this watch, so it never begins a new term.
        let terms = watch::channel(0).1;
        let watch = inner.reflector_config(
            Watch::all(CRDS),
            inner.definitions.clone(),
            DefinitionSignal::default(),
            terms,
        );
        inner.tasks.spawn(async move {
            tokio::select! {
                () = reflect(watch, definitions) => {}
                () = ended.cancelled() => {}
            }
        });
        Self(inner)
    }

    /// Returns the informer of `watch` with projection `T`, and creates it if no other caller holds
    /// it.
    pub fn informer<T: Projection>(&self, watch: Watch) -> Informer<T> {
        let key = (TypeId::of::<T>(), watch);
        let mut shared = self.0.shared.lock();
        shared.retain(|_, entry| entry.handle.strong_count() > 0);
        let known = shared.get(&key).and_then(|entry| entry.handle.upgrade());
        if let Some(handle) = known.and_then(|handle| handle.downcast::<Handle<T>>().ok()) {
            return Informer(handle);
        }
        let name = distinct_name::<T>(&key.1, &shared);
        let news = DefinitionSignal::default();
        let handle = self.0.start::<T>(name.clone(), &key.1, news.clone());
        let any: Arc<dyn Any + Send + Sync> = Arc::<Handle<T>>::clone(&handle);
        let core = Arc::downgrade(&handle.core);
        let entry = Entry {
            name,
            handle: Arc::downgrade(&any),
            report: Arc::new(move || core.upgrade().map(|core| core.report())),
            definition: news,
        };
        shared.insert(key, entry);
        Informer(handle)
    }

    /// Returns the state of each watch, sorted by name.
    pub fn reports(&self) -> Vec<Report> {
        let definitions = self.0.definitions.status();
        // Call the reports without this lock, because each takes the locks of its informer.
        let shared: Vec<_> = self
            .0
            .shared
            .lock()
            .values()
            .map(|entry| Arc::clone(&entry.report))
            .collect();
        let mut reports: Vec<_> = shared.iter().filter_map(|report| report()).collect();
        reports.push(Report {
            name: CRDS.to_string(),
            synced: definitions.last_contact.is_some(),
            last_contact: definitions.last_contact,
            failure: definitions.failure,
            undecodable: Vec::new(),
            objects: 0,
        });
        reports.sort_by(|a, b| a.name.cmp(&b.name));
        reports
    }

    /// Returns the configuration of the informers.
    pub fn informer_config(&self) -> &InformerConfig {
        &self.0.informer_config
    }

    /// Stops every watch, also those of informers that are still held, and waits until all have
    /// ended. Their stores keep their last state.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Inner {
    fn reflector_config(
        &self,
        watch: Watch,
        reporter: StatusReporter,
        news: DefinitionSignal,
        terms: watch::Receiver<u64>,
    ) -> ReflectorConfig {
        let DefinitionSignal {
            wake,
            definition_deleted,
        } = news;
        ReflectorConfig {
            client: self.client.clone(),
            watch,
            page_size: self.informer_config.page_size,
            idle_timeout: self.informer_config.idle_timeout,
            reporter,
            wake,
            definition_deleted,
            terms,
            is_optional: false,
        }
    }

    fn start<T: Projection>(&self, name: String, watch: &Watch, news: DefinitionSignal) -> Arc<Handle<T>> {
        let core = Arc::new(Core::<T>::new(name));
        let ended = self.stop.child_token();
        let reflector_config =
            self.reflector_config(watch.clone(), core.reporter.clone(), news, core.terms.subscribe());
        let sink = Arc::clone(&core);
        let resyncing = resync(Arc::clone(&core), self.informer_config.resync_period);
        let redelivering = Arc::clone(&core).redeliver_missed();
        let guard = ended.clone().drop_guard();
        let span = tracing::info_span!("informer", resource = %watch);
        let task = async move {
            tokio::select! {
                () = reflect(reflector_config, sink) => {}
                () = resyncing => {}
                () = redelivering => {}
                () = ended.cancelled() => {}
            }
        };
        self.tasks.spawn(task.instrument(span));
        Arc::new(Handle {
            core,
            _ends_watch: guard,
        })
    }
}

/// Resyncs in random intervals, so that informers that started together do not resync together.
async fn resync<T: Projection>(core: Arc<Core<T>>, period: Option<Duration>) {
    let Some(period) = period else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(period.mul_f64(1.0 + fastrand::f64())).await;
        core.resync();
    }
}

/// Returns a name that no other report uses. Two watches on the same objects with different
/// projections need different names.
fn distinct_name<T: Projection>(watch: &Watch, shared: &HashMap<(TypeId, Watch), Entry>) -> String {
    let form = if T::METADATA_ONLY { " (metadata)" } else { "" };
    let name = format!("{watch}{form}");
    let is_taken = |name: &String| *name == CRDS.to_string() || shared.values().any(|entry| entry.name == *name);
    let further = (2..).map(|number| format!("{name} ({number})"));
    let mut names = std::iter::once(name.clone()).chain(further);
    names.find(|name| !is_taken(name)).unwrap_or(name)
}

/// The sink of the watch on CustomResourceDefinitions. It notifies loops when the definition of
/// their resource is created, changed or deleted.
struct Definitions {
    inner: Weak<Inner>,
    /// The known definitions. Only a definition that was stored can be reported as deleted.
    known: Store<MetadataOnly>,
}

impl Sink for Definitions {
    type Object = MetadataOnly;

    fn apply(&mut self, event: Event<MetadataOnly>) {
        let here = match &event {
            Event::Listed(definition) | Event::Applied(definition) => Some(Arc::clone(&definition.metadata.name)),
            _ => None,
        };
        let deltas = self.known.apply(event);
        let deleted = deltas.iter().filter_map(|delta| match &delta.change {
            Change::Deleted { last, .. } => Some(Arc::clone(&last.metadata.name)),
            Change::Added(_) | Change::Updated { .. } => None,
        });
        // A recreated definition: report the deletion before the creation.
        let news: Vec<_> = deleted
            .map(|name| (name, true))
            .chain(here.map(|name| (name, false)))
            .collect();
        let Some(inner) = self.inner.upgrade() else { return };
        for ((_, watch), entry) in &*inner.shared.lock() {
            let name = watch.resource.crd_name();
            for (_, gone) in news.iter().filter(|(known, _)| **known == *name) {
                entry.definition.notify(*gone);
            }
        }
    }
}

#[cfg(test)]
mod tests;
