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
    /// How long a watch may receive nothing before the informer reconnects. The apiserver sends a
    /// bookmark about once a minute, except for a resource that has not changed since the apiserver
    /// started.
    pub idle_timeout: Duration,
    /// The number of objects in one page of a list.
    pub page_size: u32,
    /// The minimum period between two resyncs, in which subscribers receive every object again.
    /// Each interval is random, between one and two periods. `None` disables resyncs.
    pub resync_period: Option<Duration>,
}

impl InformerConfig {
    /// Returns how long a watch may be without contact before its store counts as stale: 4/3 of
    /// `idle_timeout`, which leaves time to reconnect.
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
    _crd_watch_guard: DropGuard,
}

struct Entry {
    name: String,
    handle: Weak<dyn Any + Send + Sync>,
    report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    definition: CrdSignal,
}

/// Notifies a list-and-watch loop of changes of its resource's CRD.
#[derive(Clone, Default)]
struct CrdSignal {
    wake: Arc<Notify>,
    definition_deleted: Arc<AtomicBool>,
}

impl CrdSignal {
    fn notify(&self, deleted: bool) {
        self.definition_deleted.store(deleted, Ordering::Relaxed);
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
        let stopped = stop.child_token();
        let inner = Arc::new(Inner {
            client,
            informer_config,
            shared: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
            definitions: StatusReporter::default(),
            _crd_watch_guard: stopped.clone().drop_guard(),
        });
        let definitions = CrdSink {
            inner: Arc::downgrade(&inner),
            stored: Store::default(),
        };
        // No Lease guards this watch, so it never begins a new term.
        let terms = watch::channel(0).1;
        let watch = inner.reflector_config(Watch::all(CRDS), inner.definitions.clone(), CrdSignal::default(), terms);
        inner.tasks.spawn(async move {
            tokio::select! {
                () = reflect(watch, definitions) => {}
                () = stopped.cancelled() => {}
            }
        });
        Self(inner)
    }

    /// Returns the informer of `watch` with projection `T`, and creates the informer if no caller
    /// holds one.
    pub fn informer<T: Projection>(&self, watch: Watch) -> Informer<T> {
        let key = (TypeId::of::<T>(), watch);
        let mut shared = self.0.shared.lock();
        shared.retain(|_, entry| entry.handle.strong_count() > 0);
        let existing = shared.get(&key).and_then(|entry| entry.handle.upgrade());
        if let Some(handle) = existing.and_then(|handle| handle.downcast::<Handle<T>>().ok()) {
            return Informer(handle);
        }
        let name = distinct_name::<T>(&key.1, &shared);
        let crd_signal = CrdSignal::default();
        let handle = self.0.start::<T>(name.clone(), &key.1, crd_signal.clone());
        let any: Arc<dyn Any + Send + Sync> = Arc::<Handle<T>>::clone(&handle);
        let core = Arc::downgrade(&handle.core);
        let entry = Entry {
            name,
            handle: Arc::downgrade(&any),
            report: Arc::new(move || core.upgrade().map(|core| core.report())),
            definition: crd_signal,
        };
        shared.insert(key, entry);
        Informer(handle)
    }

    /// Returns the state of each watch, sorted by name.
    pub fn reports(&self) -> Vec<Report> {
        let definitions = self.0.definitions.status();
        // The reports are called after this lock is released, because each takes the locks of its
        // informer.
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

    /// Stops every watch, including those of informers that are still held, and waits until all
    /// have ended. The stores keep their last state.
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
        crd_signal: CrdSignal,
        terms: watch::Receiver<u64>,
    ) -> ReflectorConfig {
        let CrdSignal {
            wake,
            definition_deleted,
        } = crd_signal;
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

    fn start<T: Projection>(&self, name: String, watch: &Watch, crd_signal: CrdSignal) -> Arc<Handle<T>> {
        let core = Arc::new(Core::<T>::new(name));
        let stopped = self.stop.child_token();
        let reflector_config =
            self.reflector_config(watch.clone(), core.reporter.clone(), crd_signal, core.terms.subscribe());
        let sink = Arc::clone(&core);
        let resyncs = resync(Arc::clone(&core), self.informer_config.resync_period);
        let redelivery = Arc::clone(&core).redeliver_missed();
        let guard = stopped.clone().drop_guard();
        let span = tracing::info_span!("informer", resource = %watch);
        let task = async move {
            tokio::select! {
                () = reflect(reflector_config, sink) => {}
                () = resyncs => {}
                () = redelivery => {}
                () = stopped.cancelled() => {}
            }
        };
        self.tasks.spawn(task.instrument(span));
        Arc::new(Handle {
            core,
            _watch_guard: guard,
        })
    }
}

/// Resyncs at random intervals, so that informers that started together do not resync together.
async fn resync<T: Projection>(core: Arc<Core<T>>, period: Option<Duration>) {
    let Some(period) = period else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(period.mul_f64(1.0 + fastrand::f64())).await;
        core.resync();
    }
}

/// Returns a name that no other report uses. Watches on the same objects with different projections
/// have different names.
fn distinct_name<T: Projection>(watch: &Watch, shared: &HashMap<(TypeId, Watch), Entry>) -> String {
    let suffix = if T::METADATA_ONLY { " (metadata)" } else { "" };
    let name = format!("{watch}{suffix}");
    let is_taken = |name: &String| *name == CRDS.to_string() || shared.values().any(|entry| entry.name == *name);
    let numbered = (2..).map(|number| format!("{name} ({number})"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !is_taken(name)).unwrap_or(name)
}

/// The sink of the watch on CustomResourceDefinitions. It notifies loops when the CRD of their
/// resource is created, changed or deleted.
struct CrdSink {
    inner: Weak<Inner>,
    /// The existing CRDs. Only a CRD that was stored can be reported as deleted.
    stored: Store<MetadataOnly>,
}

impl Sink for CrdSink {
    type Object = MetadataOnly;

    fn apply(&mut self, event: Event<MetadataOnly>) {
        let present = match &event {
            Event::Listed(definition) | Event::Applied(definition) => Some(Arc::clone(&definition.metadata.name)),
            _ => None,
        };
        let deltas = self.stored.apply(event);
        let deleted = deltas.iter().filter_map(|delta| match &delta.change {
            Change::Deleted { last, .. } => Some(Arc::clone(&last.metadata.name)),
            Change::Added(_) | Change::Updated { .. } => None,
        });
        // If a CRD was recreated, its deletion is reported before its creation.
        let changes: Vec<_> = deleted
            .map(|name| (name, true))
            .chain(present.map(|name| (name, false)))
            .collect();
        let Some(inner) = self.inner.upgrade() else { return };
        for ((_, watch), entry) in &*inner.shared.lock() {
            let name = watch.resource.crd_name();
            for (_, deleted) in changes.iter().filter(|(changed, _)| **changed == *name) {
                entry.definition.notify(*deleted);
            }
        }
    }
}

#[cfg(test)]
mod tests;
