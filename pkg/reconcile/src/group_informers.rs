//! The informers that a group of controllers uses.

use std::sync::Arc;

use parking_lot::Mutex;
use portreeve_informer::{Cache, Factory, Informer, Projection, SharedWatches, Watch};

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
}

impl GroupInformers {
    /// Creates an empty group whose informers come from `factory`.
    pub fn new(factory: Factory) -> Self {
        Self {
            factory,
            used: Mutex::default(),
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
}
