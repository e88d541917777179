//! Who asks for the same watch shares it.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use kube::Client;
use parking_lot::Mutex;
use portreeve_api::Resource;
use tokio::sync::Notify;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::Instrument;

use crate::{
    Event, Informer, Loop, MetadataOnly, Projection, Report, Reporting, Sink, Watch,
    informer::{Core, Handle},
    reflect,
};

/// CustomResourceDefinitions: when one comes, who waits for its resource is woken.
const CRDS: Resource = Resource::cluster(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
);

/// The times that informers go by.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// How long a watch may be silent before its connection counts as dead. The apiserver sends a bookmark about each minute.
    pub idle_limit: Duration,
    /// How many objects one page of a list holds.
    pub page_size: u32,
    /// How often subscribers are told of every object again, at random between once and twice this; `None`: never.
    pub resync_period: Option<Duration>,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            idle_limit: Duration::from_secs(90),
            page_size: 500,
            resync_period: None,
        }
    }
}

/// Makes informers, shares them, and ends them. Cheap to clone.
#[derive(Clone)]
pub struct Factory(Arc<Inner>);

struct Inner {
    client: Client,
    tuning: Tuning,
    shared: Mutex<HashMap<(TypeId, Watch), Entry>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    definitions: Reporting,
    _ends_definitions: DropGuard,
}

struct Entry {
    handle: Weak<dyn Any + Send + Sync>,
    report: Arc<dyn Fn() -> Option<Report> + Send + Sync>,
    wake: Arc<Notify>,
}

impl Factory {
    /// A factory whose watches go through `client`. Starts the one watch on CustomResourceDefinitions, which ends with the factory, so
    /// it has to be called within a runtime.
    pub fn new(client: Client, tuning: Tuning) -> Self {
        let stop = CancellationToken::new();
        let ended = stop.child_token();
        let inner = Arc::new(Inner {
            client,
            tuning,
            shared: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
            definitions: Reporting::default(),
            _ends_definitions: ended.clone().drop_guard(),
        });
        let waker = Waker(Arc::downgrade(&inner));
        let watch = inner.watch_loop(Watch::all(CRDS), inner.definitions.clone(), Arc::default());
        inner.tasks.spawn(async move {
            tokio::select! {
                () = reflect(watch, waker) => {}
                () = ended.cancelled() => {}
            }
        });
        Self(inner)
    }

    /// The informer of `watch` with projection `T`: a new one, or the one that others use already.
    pub fn informer<T: Projection>(&self, watch: Watch) -> Informer<T> {
        let key = (TypeId::of::<T>(), watch);
        let mut shared = self.0.shared.lock();
        shared.retain(|_, entry| entry.handle.strong_count() > 0);
        let known = shared.get(&key).and_then(|entry| entry.handle.upgrade());
        if let Some(handle) = known.and_then(|handle| handle.downcast::<Handle<T>>().ok()) {
            return Informer(handle);
        }
        let wake = Arc::new(Notify::new());
        let handle = self.0.start::<T>(&key.1, &wake);
        let any: Arc<dyn Any + Send + Sync> = Arc::<Handle<T>>::clone(&handle);
        let core = Arc::downgrade(&handle.core);
        let entry = Entry {
            handle: Arc::downgrade(&any),
            report: Arc::new(move || core.upgrade().map(|core| core.report())),
            wake,
        };
        shared.insert(key, entry);
        Informer(handle)
    }

    /// How each watch fares, by name.
    pub fn reports(&self) -> Vec<Report> {
        let definitions = self.0.definitions.noted();
        // Asked outside of the lock: each one takes its informer's.
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
            trouble: definitions.trouble,
            undecodable: Vec::new(),
            objects: 0,
        });
        reports.sort_by(|a, b| a.name.cmp(&b.name));
        reports
    }

    /// The times that its informers go by.
    pub fn tuning(&self) -> &Tuning {
        &self.0.tuning
    }

    /// Ends every watch, also of informers that are still held, and waits until each has. Their stores stay as they are.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

impl Inner {
    fn watch_loop(&self, watch: Watch, reporting: Reporting, wake: Arc<Notify>) -> Loop {
        Loop {
            client: self.client.clone(),
            watch,
            page_size: self.tuning.page_size,
            idle_limit: self.tuning.idle_limit,
            reporting,
            wake,
        }
    }

    fn start<T: Projection>(&self, watch: &Watch, wake: &Arc<Notify>) -> Arc<Handle<T>> {
        let core = Arc::new(Core::<T>::new(watch.to_string()));
        let ended = self.stop.child_token();
        let watch_loop = self.watch_loop(watch.clone(), core.reporting.clone(), Arc::clone(wake));
        let sink = Arc::clone(&core);
        let resyncing = resync(Arc::clone(&core), self.tuning.resync_period);
        let guard = ended.clone().drop_guard();
        let span = tracing::info_span!("informer", resource = %watch);
        let task = async move {
            tokio::select! {
                () = reflect(watch_loop, sink) => {}
                () = resyncing => {}
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

/// Spread over the period, so that informers that started together do not resync together.
async fn resync<T: Projection>(core: Arc<Core<T>>, period: Option<Duration>) {
    let Some(period) = period else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(period.mul_f64(1.0 + fastrand::f64())).await;
        core.resync();
    }
}

/// The sink of the watch on CustomResourceDefinitions: stores nothing, wakes who waits.
struct Waker(Weak<Inner>);

impl Sink for Waker {
    type Object = MetadataOnly;

    fn apply(&mut self, event: Event<MetadataOnly>) {
        let (Event::Listed(definition) | Event::Applied(definition)) = event else {
            return;
        };
        let Some(inner) = self.0.upgrade() else { return };
        for ((_, watch), entry) in &*inner.shared.lock() {
            if watch.resource.crd_name() == *definition.metadata.name {
                entry.wake.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests;
