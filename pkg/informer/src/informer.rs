//! What controllers hold: a store to read, indexes, subscriptions.
//!
//! Two locks, always taken in this order: `subscribers` (who is told) and then `store` (what is true). Handlers run under the
//! first alone, so they may read any store, this one too; a late subscriber is replayed under it, so it misses nothing and sees
//! nothing twice.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use portreeve_api::ObjectKey;
use portreeve_client::ApiErrorKind;
use tokio::sync::{Notify, watch};
use tokio_util::sync::DropGuard;

use crate::{
    Cause, Change, Delta, Event, Projection, Report, Sink, StatusReporter, Store, WatchFailure, backoff::Backoff,
};

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
    /// The term in which the last complete list was begun.
    synced: watch::Sender<Option<u64>>,
    /// The present term.
    pub(crate) terms: watch::Sender<u64>,
    pub(crate) reporter: StatusReporter,
    /// Whether a handler panicked and has not been told again yet; `missed_signal` says so to the task.
    has_missed: AtomicBool,
    missed_signal: Notify,
}

struct Subscribers<T> {
    next: u64,
    all: Vec<Subscriber<T>>,
}

struct Subscriber<T> {
    number: u64,
    handler: Handler<T>,
    /// The first change of each object on which the handler panicked.
    missed_changes: HashMap<ObjectKey, Change<T>>,
}

impl<T: Projection> Subscriber<T> {
    /// Whether the handler took it. A panic is its own: other handlers are told, and this one again later.
    fn notify(&mut self, delta: &Delta<T>) -> bool {
        let taken = catch_unwind(AssertUnwindSafe(|| (self.handler)(delta))).is_ok();
        if !taken {
            let key = delta.key();
            tracing::error!(object = %key, "a handler panicked, it is told again later");
            self.missed_changes.entry(key).or_insert_with(|| delta.change.clone());
        }
        taken
    }
}

/// An informer was not complete in time.
#[derive(Debug, thiserror::Error)]
#[error("{name} is not synced after {limit:?}: {reason}")]
pub struct CacheSyncTimeout {
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
    /// subscription is dropped. Within a handler, subscribing and dropping a subscription are deadlocks. A change on which it panics is
    /// told again after a while, as an `Updated` or `Deleted` that includes what came after it; a panic on what is there already is the
    /// caller's.
    pub fn subscribe(&self, handler: impl Fn(&Delta<T>) + Send + Sync + 'static) -> Subscription {
        self.0.core.subscribe(Arc::new(handler))
    }

    /// Whether a list was ever complete.
    pub fn is_synced(&self) -> bool {
        self.0.core.synced.borrow().is_some()
    }

    /// Waits until a list was complete that was begun in the present term: see [`Cache::begin_term`].
    ///
    /// # Errors
    ///
    /// [`CacheSyncTimeout`] once `limit` has passed, with the name of what is missing and why.
    pub async fn wait_for_sync(&self, limit: Duration) -> Result<(), CacheSyncTimeout> {
        let core = &self.0.core;
        let term = *core.terms.borrow();
        let mut synced = core.synced.subscribe();
        let complete = synced.wait_for(|synced| synced.is_some_and(|synced| synced >= term));
        // The sender lives in `core`, so the channel cannot close under us.
        if let Ok(Ok(_)) = tokio::time::timeout(limit, complete).await {
            return Ok(());
        }
        let failure = core.reporter.status().failure;
        Err(CacheSyncTimeout {
            name: core.name.clone(),
            limit,
            reason: failure.map_or_else(|| "the first list is still under way".to_owned(), |t| t.message),
        })
    }

    /// What is watched, as reports name it.
    pub fn name(&self) -> &str {
        &self.0.core.name
    }
}

/// What of an informer does not depend on what it holds.
pub trait Cache: Send + Sync {
    /// Begins a new term: everything is listed again, and until that is done [`Informer::wait_for_sync`] waits.
    ///
    /// For who takes over from another process. Its caches may be behind what that one wrote last: a watch may be late, or its connection
    /// dead without anybody knowing yet. A list that is begun now has it all.
    fn begin_term(&self);
}

impl<T: Projection> Cache for Informer<T> {
    fn begin_term(&self) {
        self.0.core.terms.send_modify(|term| *term += 1);
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
                all: Vec::new(),
            }),
            synced: watch::Sender::new(None),
            terms: watch::Sender::new(0),
            reporter: StatusReporter::default(),
            has_missed: AtomicBool::new(false),
            missed_signal: Notify::new(),
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
        subscribers.all.push(Subscriber {
            number,
            handler,
            missed_changes: HashMap::new(),
        });
        let core: Weak<Self> = Arc::downgrade(self);
        Subscription(Some(Box::new(move || {
            let Some(core) = core.upgrade() else { return };
            let mut subscribers = core.subscribers.lock();
            let place = subscribers.all.iter().position(|known| known.number == number);
            let removed = place.map(|place| subscribers.all.remove(place));
            // What the handler holds may be a subscription too: it is dropped outside of the lock.
            drop(subscribers);
            drop(removed);
        })))
    }

    /// Tells every subscriber of every object again.
    pub(crate) fn resync(&self) {
        let mut subscribers = self.subscribers.lock();
        let known: Vec<_> = self.store.read().iter().cloned().collect();
        let deltas = known.into_iter().map(|object| Delta {
            change: Change::Updated {
                old: Arc::clone(&object),
                new: object,
            },
            cause: Cause::Resynced,
        });
        self.notify(&mut subscribers, deltas);
    }

    fn notify(&self, subscribers: &mut Subscribers<T>, deltas: impl IntoIterator<Item = Delta<T>>) {
        for delta in deltas {
            for subscriber in &mut subscribers.all {
                if !subscriber.notify(&delta) {
                    self.has_missed.store(true, Ordering::Relaxed);
                    self.missed_signal.notify_one();
                }
            }
        }
    }

    /// Tells handlers of the changes on which they panicked, less and less often while they go on panicking.
    pub(crate) async fn redeliver_missed(self: Arc<Self>) {
        loop {
            self.missed_signal.notified().await;
            let mut backoff = Backoff::new();
            while self.has_missed.load(Ordering::Relaxed) {
                tokio::time::sleep(backoff.wait()).await;
                self.redeliver();
            }
        }
    }

    fn redeliver(&self) {
        let mut subscribers = self.subscribers.lock();
        let mut all_taken = true;
        for subscriber in &mut subscribers.all {
            for (key, missed) in std::mem::take(&mut subscriber.missed_changes) {
                let (Change::Added(old) | Change::Updated { old, .. } | Change::Deleted { last: old, .. }) = missed;
                let now = self.store.read().get(&key).cloned();
                let change = match now {
                    Some(new) => Change::Updated { old, new },
                    None => Change::Deleted {
                        last: old,
                        is_final: false,
                    },
                };
                let cause = Cause::Watched;
                all_taken &= subscriber.notify(&Delta { change, cause });
            }
        }
        self.has_missed.store(!all_taken, Ordering::Relaxed);
    }

    pub(crate) fn report(&self) -> Report {
        let status = self.reporter.status();
        let panicked = self.has_missed.load(Ordering::Relaxed).then(|| WatchFailure {
            kind: ApiErrorKind::Transient,
            message: "a handler panicked, the log has it; it is told again of what it missed".to_owned(),
        });
        let store = self.store.read();
        Report {
            name: self.name.clone(),
            synced: store.is_synced(),
            last_contact: status.last_contact,
            failure: status.failure.or(panicked),
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
        let mut subscribers = self.subscribers.lock();
        let deltas = self.store.write().apply(event);
        self.notify(&mut subscribers, deltas);
    }

    /// After the subscribers were told: who waits for the sync finds every key of the list in its queue.
    fn complete(&mut self, term: u64, _: Option<&str>) {
        self.synced.send_replace(Some(term));
    }
}
