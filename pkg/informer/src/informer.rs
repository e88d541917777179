//! What controllers hold: a store to read, indexes, subscriptions.
//!
//! Two locks, always taken in this order: `subscribers` (who is told) and then `store` (what is true). Handlers run under the
//! first alone, so they may read any store, this one too; a late subscriber is replayed under it, so it misses nothing and sees
//! nothing twice.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use portreeve_api::ObjectKey;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

use crate::{Cause, Change, Delta, Event, Projection, Report, Reporting, Sink, Store};

type Handler<T> = Arc<dyn Fn(&Delta<T>) + Send + Sync>;

/// A shared view of one watch. Cheap to clone; the watch lives as long as one clone does.
pub struct Informer<T>(pub(crate) Arc<Handle<T>>);

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Dropped with the last informer: the guard then ends the watch.
pub(crate) struct Handle<T> {
    pub(crate) core: Arc<Core<T>>,
    pub(crate) _ends_watch: DropGuard,
}

/// What the watch writes and informers read.
pub(crate) struct Core<T> {
    name: String,
    store: RwLock<Store<T>>,
    subscribers: Mutex<Subscribers<T>>,
    synced: watch::Sender<bool>,
    pub(crate) reporting: Reporting,
}

struct Subscribers<T> {
    next: u64,
    handlers: Vec<(u64, Handler<T>)>,
}

/// An informer was not complete in time.
#[derive(Debug, thiserror::Error)]
#[error("{name} is not synced after {limit:?}: {reason}")]
pub struct NotSynced {
    /// Which informer.
    pub name: String,
    /// How long was waited.
    pub limit: Duration,
    /// The last failure, or that there was none.
    pub reason: String,
}

impl<T: Projection> Informer<T> {
    /// The object of that key, from the store.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.0.core.store.read().get(key).cloned()
    }

    /// All objects of the store, in no order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.0.core.store.read().iter().cloned().collect()
    }

    /// An index over this store. One name is one index, whoever asks: give different functions different names.
    pub fn index(&self, name: &'static str, values: impl Fn(&T) -> Vec<Box<str>> + Send + Sync + 'static) -> Index<T> {
        let number = self.0.core.store.write().add_index(name, Arc::new(values));
        Index {
            informer: self.clone(),
            number,
        }
    }

    /// Calls `handler` with every change from now on, after an `Added` for each object that is there already.
    ///
    /// Changes of one object come in order. The handler must not block; it may read stores. It is not called any more once the
    /// subscription is dropped. Within a handler, subscribing and dropping a subscription are deadlocks.
    pub fn subscribe(&self, handler: impl Fn(&Delta<T>) + Send + Sync + 'static) -> Subscription {
        self.0.core.subscribe(Arc::new(handler))
    }

    /// Whether a list was ever complete.
    pub fn is_synced(&self) -> bool {
        *self.0.core.synced.borrow()
    }

    /// Waits until a list was complete.
    ///
    /// # Errors
    ///
    /// [`NotSynced`] once `limit` has passed, with the name of what is missing and why.
    pub async fn synced(&self, limit: Duration) -> Result<(), NotSynced> {
        let core = &self.0.core;
        let mut synced = core.synced.subscribe();
        // The sender lives in `core`, so the channel cannot close under us.
        if let Ok(Ok(_)) = tokio::time::timeout(limit, synced.wait_for(|synced| *synced)).await {
            return Ok(());
        }
        let trouble = core.reporting.noted().trouble;
        Err(NotSynced {
            name: core.name.clone(),
            limit,
            reason: trouble.map_or_else(|| "the first list is still under way".to_owned(), |t| t.message),
        })
    }

    /// What is watched, as reports name it.
    pub fn name(&self) -> &str {
        &self.0.core.name
    }
}

/// An index of an informer: finds objects by what they say instead of by what they are called.
pub struct Index<T> {
    informer: Informer<T>,
    number: usize,
}

impl<T> Clone for Index<T> {
    fn clone(&self) -> Self {
        Self {
            informer: self.informer.clone(),
            number: self.number,
        }
    }
}

impl<T: Projection> Index<T> {
    /// The objects under `value`, in no order.
    pub fn get(&self, value: &str) -> Vec<Arc<T>> {
        let store = self.informer.0.core.store.read();
        store.by_index(self.number, value).cloned().collect()
    }
}

/// Ends with its drop.
#[must_use = "the handler is removed when the subscription is dropped"]
pub struct Subscription(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(remove) = self.0.take() {
            remove();
        }
    }
}

impl<T: Projection> Core<T> {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            store: RwLock::default(),
            subscribers: Mutex::new(Subscribers {
                next: 0,
                handlers: Vec::new(),
            }),
            synced: watch::Sender::new(false),
            reporting: Reporting::default(),
        }
    }

    fn subscribe(self: &Arc<Self>, handler: Handler<T>) -> Subscription {
        let mut subscribers = self.subscribers.lock();
        let known: Vec<_> = self.store.read().iter().cloned().collect();
        for object in known {
            handler(&Delta {
                change: Change::Added(object),
                cause: Cause::Replayed,
            });
        }
        let number = subscribers.next;
        subscribers.next += 1;
        subscribers.handlers.push((number, handler));
        let core: Weak<Self> = Arc::downgrade(self);
        Subscription(Some(Box::new(move || {
            let Some(core) = core.upgrade() else { return };
            let mut subscribers = core.subscribers.lock();
            let place = subscribers.handlers.iter().position(|(known, _)| *known == number);
            let removed = place.map(|place| subscribers.handlers.remove(place));
            // What the handler holds may be a subscription too: it is dropped outside of the lock.
            drop(subscribers);
            drop(removed);
        })))
    }

    /// Tells every subscriber of every object again.
    pub(crate) fn resync(&self) {
        let subscribers = self.subscribers.lock();
        let known: Vec<_> = self.store.read().iter().cloned().collect();
        for object in known {
            let delta = Delta {
                change: Change::Updated {
                    old: Arc::clone(&object),
                    new: object,
                },
                cause: Cause::Resynced,
            };
            subscribers.handlers.iter().for_each(|(_, handler)| handler(&delta));
        }
    }

    pub(crate) fn report(&self) -> Report {
        let noted = self.reporting.noted();
        let store = self.store.read();
        Report {
            name: self.name.clone(),
            synced: store.is_synced(),
            last_contact: noted.last_contact,
            trouble: noted.trouble,
            undecodable: store
                .undecodable()
                .iter()
                .map(|(key, error)| (key.clone(), error.clone()))
                .collect(),
            objects: store.len(),
        }
    }
}

impl<T: Projection> Sink for Arc<Core<T>> {
    type Object = T;

    fn apply(&mut self, event: Event<T>) {
        let subscribers = self.subscribers.lock();
        let (deltas, synced) = {
            let mut store = self.store.write();
            (store.apply(event), store.is_synced())
        };
        for delta in &deltas {
            subscribers.handlers.iter().for_each(|(_, handler)| handler(delta));
        }
        // After the subscribers: who waits for the sync finds every key of the first list in its queue.
        self.synced
            .send_if_modified(|was| std::mem::replace(was, synced) != synced);
    }
}
