//! Creates informers and deduplicates them by watch.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use kube::Client;
use parking_lot::Mutex;
use portreeve_api::{CRDS, Resource};
use portreeve_client::Outage;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    Change, Event, MetadataOnly, Projection, Report, Store, Watch,
    informer::{Core, Handle, Informer},
    readers::{ModelState, Reader, Sink},
    reflect::{ReflectorConfig, reflect},
    shared_watch::{Attachment, SharedWatch},
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
    /// Ends backoffs after an outage. Use the one that records the requests of the informers.
    pub outage: Outage,
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
            outage: Outage::default(),
        }
    }
}

/// Creates informers, shares their watches, and stops them. Cheap to clone.
#[derive(Clone)]
pub struct Factory(Arc<Inner>);

/// The watches of a [`Factory`], for readers with their own model, such as a graph. Cheap to clone.
///
/// Such a reader cannot begin a term, so its model must tolerate lagging behind the apiserver. When
/// an informer begins a term, the watch relists for all its readers.
#[derive(Clone)]
pub struct SharedWatches(Arc<Inner>);

struct Inner {
    client: Client,
    informer_config: InformerConfig,
    watches: Mutex<HashMap<Watch, Weak<SharedWatch>>>,
    /// The informers by projection and watch.
    informers: Mutex<HashMap<(TypeId, Watch), Weak<dyn Any + Send + Sync>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// The number of times that the version of a watch was seen to decrease.
    version_decreases: watch::Sender<u64>,
    /// Counts the loops.
    loops: Arc<()>,
    /// The reader of CustomResourceDefinitions. It holds no reference to this struct.
    crds: OnceLock<Attachment>,
}

impl Factory {
    /// Creates a factory whose watches use `client`.
    ///
    /// It starts one watch on CustomResourceDefinitions, which ends with the factory. Must be
    /// called within a Tokio runtime.
    pub fn new(client: Client, informer_config: InformerConfig) -> Self {
        let inner = Arc::new(Inner {
            client,
            informer_config,
            watches: Mutex::default(),
            informers: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            version_decreases: watch::Sender::new(0),
            loops: Arc::default(),
            crds: OnceLock::new(),
        });
        let crds = CrdSink {
            inner: Arc::downgrade(&inner),
            stored: Store::default(),
        };
        let reader = Reader::required(crds, ModelState::default);
        let attachment = inner.attach(&inner.shared_watch(Watch::all(CRDS)), reader);
        // The cell is still empty: only this function sets it.
        inner.crds.set(attachment).ok();
        Self(inner)
    }

    /// Returns the informer of `watch` with projection `T`, and creates the informer if no caller
    /// holds one. It shares the watch with all other readers of the same objects.
    pub fn informer<T: Projection>(&self, watch: Watch) -> Informer<T> {
        let mut informers = self.0.informers.lock();
        informers.retain(|_, handle| handle.strong_count() > 0);
        let shared = self.0.shared_watch(watch.clone());
        if !watch.versions.is_empty() {
            shared.versions.get_or_init(|| watch.versions);
        }
        let key = (TypeId::of::<T>(), watch);
        let existing = informers.get(&key).and_then(Weak::upgrade);
        if let Some(handle) = existing.and_then(|handle| handle.downcast::<Handle<T>>().ok()) {
            return Informer(handle);
        }
        let handle = self.0.start::<T>(&shared);
        let any: Arc<dyn Any + Send + Sync> = Arc::<Handle<T>>::clone(&handle);
        informers.insert(key, Arc::downgrade(&any));
        Informer(handle)
    }

    /// Returns a handle for readers with a model of their own.
    pub fn shared_watches(&self) -> SharedWatches {
        SharedWatches(Arc::clone(&self.0))
    }

    /// Returns the state of each watch, sorted by name.
    pub fn reports(&self) -> Vec<Report> {
        let watches = self.0.live_watches();
        let mut reports: Vec<_> = watches.iter().filter_map(|shared| shared.report()).collect();
        reports.sort_by(|a, b| a.name.cmp(&b.name));
        reports
    }

    /// Returns the number of times that the resourceVersion of a list or a watch was seen to
    /// decrease, as after a restore of etcd from a backup.
    pub fn version_decreases(&self) -> watch::Receiver<u64> {
        self.0.version_decreases.subscribe()
    }

    /// Lists the CustomResourceDefinitions again.
    pub fn relist_crds(&self) {
        self.0.crds.get().inspect(|reader| reader.relist());
    }

    /// Returns the client and the page size for lists.
    pub(crate) fn lister(&self) -> (Client, u32) {
        (self.0.client.clone(), self.0.informer_config.page_size)
    }

    /// Returns the existing watches.
    pub(crate) fn live_watches(&self) -> Vec<Arc<SharedWatch>> {
        self.0.live_watches()
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

impl SharedWatches {
    /// Attaches a reader to the watch. It first receives a complete list, and then every change.
    ///
    /// [`Factory::reports`] does not mention a watch that has only such readers, and the loop does
    /// not warn when the resource is not served.
    pub fn attach<S: Sink>(&self, watch: Watch, sink: S) -> Attachment {
        self.0.attach(&self.0.shared_watch(watch), Reader::optional(sink))
    }

    /// Returns the resources of which an informer reads all objects, each in the version that it
    /// reads.
    pub fn informer_resources(&self) -> Vec<Resource> {
        self.resources_of(|_| true)
    }

    /// Returns those of [`SharedWatches::informer_resources`] whose informers are synced.
    pub fn synced_informer_resources(&self) -> Vec<Resource> {
        self.resources_of(|informers| informers.iter().all(|informer| informer.is_synced()))
    }

    fn resources_of(&self, accepts: impl Fn(&[Arc<Reader>]) -> bool) -> Vec<Resource> {
        let watches = self.0.live_watches().into_iter();
        watches
            .filter(|shared| {
                let informers = shared.readers.required();
                shared.watch.covers_all_objects() && !informers.is_empty() && accepts(&informers)
            })
            .map(|shared| shared.watch.resource.clone())
            .collect()
    }

    /// Returns the outage that ends the backoffs of the watches.
    pub(crate) fn outage(&self) -> &Outage {
        &self.0.informer_config.outage
    }

    /// Returns how long a watch may be without contact before what was read from it counts as
    /// stale.
    pub fn stale_after(&self) -> Duration {
        self.0.informer_config.stale_after()
    }
}

impl Inner {
    /// Returns the watch, which has no loop until a reader is attached.
    fn shared_watch(&self, watch: Watch) -> Arc<SharedWatch> {
        let mut watches = self.watches.lock();
        watches.retain(|_, shared| shared.strong_count() > 0);
        if let Some(shared) = watches.get(&watch).and_then(Weak::upgrade) {
            return shared;
        }
        let shared = SharedWatch::new(watch.clone(), self.stop.child_token());
        watches.insert(watch, Arc::downgrade(&shared));
        shared
    }

    /// Returns the existing watches, so that callers lock them after the lock of the map is
    /// released.
    fn live_watches(&self) -> Vec<Arc<SharedWatch>> {
        self.watches.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Attaches a reader, and starts the loop of the watch if this is its first reader.
    fn attach(&self, shared: &Arc<SharedWatch>, reader: Arc<Reader>) -> Attachment {
        let attachment = Attachment::new(Arc::clone(shared), reader);
        if shared.claim_start() {
            let config = ReflectorConfig {
                client: self.client.clone(),
                watch: shared.watch.clone(),
                page_size: self.informer_config.page_size,
                idle_timeout: self.informer_config.idle_timeout,
                reporter: shared.reporter.clone(),
                crd_signal: shared.crd_signal.clone(),
                versions: Arc::clone(&shared.versions),
                terms: shared.terms.subscribe(),
                version_decreases: self.version_decreases.clone(),
                loops: Arc::clone(&self.loops),
                outage: self.informer_config.outage.clone(),
            };
            let span = tracing::info_span!("informer", resource = %shared.watch);
            let reflector = reflect(config, Arc::clone(&shared.readers)).instrument(span);
            self.tasks
                .spawn(shared.stopped.clone().run_until_cancelled_owned(reflector));
        }
        attachment
    }

    fn start<T: Projection>(&self, shared: &Arc<SharedWatch>) -> Arc<Handle<T>> {
        let core = Arc::new(Core::<T>::new(shared));
        let inspected = Arc::downgrade(&core);
        let inspect = move || inspected.upgrade().map(|core| core.state()).unwrap_or_default();
        let stopped = self.stop.child_token();
        let task_guard = stopped.clone().drop_guard();
        let resyncs = resync(Arc::clone(&core), self.informer_config.resync_period);
        let redelivery = Arc::clone(&core).redeliver_missed();
        self.tasks.spawn(async move {
            tokio::select! {
                () = resyncs => {}
                () = redelivery => {}
                () = stopped.cancelled() => {}
            }
        });
        Arc::new(Handle {
            attachment: self.attach(shared, Reader::required(Arc::clone(&core), inspect)),
            _task_guard: task_guard,
            core,
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
        for (watch, shared) in &*inner.watches.lock() {
            let of_watch = changes.iter().filter(|(name, _)| watch.resource.is_defined_by(name));
            for (_, deleted) in of_watch {
                shared.upgrade().inspect(|shared| shared.crd_signal.notify(*deleted));
            }
        }
    }
}

#[cfg(test)]
mod tests;
