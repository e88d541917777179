//! The informers that a group of controllers uses.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_informer::{Cache, Factory, Informer, Projection, SharedWatches, Watch};
use tokio::sync::{Notify, watch};

/// The shortest time between two relists of all informers because a cache may be outdated.
const RELIST_INTERVAL: Duration = Duration::from_secs(30);

/// The informers of one group of controllers. They are shared with other groups, but each group
/// begins its own terms.
///
/// This is the only way for a controller to get an informer, so every informer that it uses lists
/// again when the group begins to lead.
pub struct GroupInformers {
    factory: Factory,
    /// Bounded by the number of informers that the group's controllers request while they are
    /// built.
    used: Mutex<Vec<Arc<dyn Cache>>>,
    stale: StaleSignal,
}

/// Reports that writes conflict while the cache does not change. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct StaleSignal(Arc<Notify>);

impl StaleSignal {
    pub(crate) fn notify(&self) {
        self.0.notify_one();
    }

    /// Waits for a report since the last one.
    pub(crate) async fn notified(&self) {
        self.0.notified().await;
    }
}

impl GroupInformers {
    /// Creates an empty group whose informers come from `factory`.
    pub fn new(factory: Factory) -> Self {
        Self {
            factory,
            used: Mutex::default(),
            stale: StaleSignal::default(),
        }
    }

    /// Returns the shared informer of a watch.
    pub fn informer<T: Projection>(&self, watch: Watch) -> Informer<T> {
        let informer = self.factory.informer(watch);
        self.used.lock().push(Arc::new(informer.clone()));
        informer
    }

    /// Returns the shared watches, for readers with their own model. These readers do not wait for
    /// a new term, but a term that an informer begins also relists the watch that they share.
    pub fn shared_watches(&self) -> SharedWatches {
        self.factory.shared_watches()
    }

    /// Begins a new term: every informer that was requested lists again, and
    /// [`Informer::wait_for_sync`] waits for that list.
    pub fn begin_term(&self) {
        self.used.lock().iter().for_each(|cache| cache.begin_term());
    }

    pub(crate) fn stale_signal(&self) -> StaleSignal {
        self.stale.clone()
    }

    /// Relists all informers whenever one of them may be outdated, at most once in 30 s. Never
    /// returns.
    ///
    /// After a restore of etcd from a backup, a watch resumes at a version in the future, and the
    /// apiserver sends nothing until that version is reached. A version that decreases shows the
    /// restore: that of a list, or that of the Lease, which `lease` counts. So do writes that
    /// conflict again and again while the cache does not change.
    pub async fn relist_when_stale(&self, mut lease: Option<watch::Receiver<u64>>) {
        let mut lists = Some(self.factory.version_decreases());
        loop {
            let reason = tokio::select! {
                () = changed(&mut lease) => "the resourceVersion of the Lease decreased",
                () = changed(&mut lists) => "the resourceVersion of a list decreased",
                () = self.stale.notified() => "writes conflict while the cache does not change",
            };
            tracing::warn!(reason, "relisting all informers");
            self.used.lock().iter().for_each(|cache| cache.relist());
            self.factory.relist_crds();
            tokio::time::sleep(RELIST_INTERVAL).await;
        }
    }
}

/// Waits for the next change of a counter. Waits for ever without one, or once it has ended.
async fn changed(counter: &mut Option<watch::Receiver<u64>>) {
    let has_changed = match counter {
        Some(counter) => counter.changed().await.is_ok(),
        None => false,
    };
    if !has_changed {
        std::future::pending::<()>().await;
    }
}
