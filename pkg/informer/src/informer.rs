//! The handle that controllers hold: a store to read, indexes, and subscriptions.
//!
//! Locks are always taken in this order: the reader's, `subscribers`, `store`. Handlers run without
//! the lock of the store, so they may read any store, including this one. The replay to a new
//! subscriber runs under the lock of the subscribers, so the subscriber receives each change
//! exactly once.

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
    Cause, Change, Delta, Event, Projection, StatusReporter, Store, WatchFailure,
    backoff::Backoff,
    readers::{ModelState, Sink},
    shared_watch::{Attachment, SharedWatch},
};

type Handler<T> = Arc<dyn Fn(&Delta<T>) + Send + Sync>;

/// A shared view of one watch. Cheap to clone. The watch ends when its last reader is dropped.
pub struct Informer<T>(pub(crate) Arc<Handle<T>>);

impl<T> Clone for Informer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// The shared part of all clones. When it is dropped, the informer no longer reads its watch.
pub(crate) struct Handle<T> {
    pub(crate) core: Arc<Core<T>>,
    pub(crate) attachment: Attachment,
    /// Ends the task of resyncs and redeliveries.
    pub(crate) _task_guard: DropGuard,
}

/// The state that the watch writes and informers read.
pub(crate) struct Core<T> {
    name: String,
    store: RwLock<Store<T>>,
    subscribers: Mutex<Subscribers<T>>,
    /// The term in which the last complete list started.
    synced: watch::Sender<Option<u64>>,
    /// The current term of the watch.
    terms: watch::Sender<u64>,
    reporter: StatusReporter,
    /// Whether a handler has missed changes because it panicked. `missed_signal` wakes the task
    /// that redelivers them.
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
    /// For each object, the first change on which the handler panicked.
    missed_changes: HashMap<ObjectKey, Change<T>>,
}

impl<T: Projection> Subscriber<T> {
    /// Calls the handler and returns whether the call succeeded. After a panic, the change is kept
    /// for redelivery.
    fn notify(&mut self, delta: &Delta<T>) -> bool {
        let returned = catch_unwind(AssertUnwindSafe(|| (self.handler)(delta))).is_ok();
        if !returned {
            let key = delta.key();
            tracing::error!(object = %key, "redelivering a change later because the handler panicked");
            self.missed_changes.entry(key).or_insert_with(|| delta.change.clone());
        }
        returned
    }
}

/// An informer did not sync in time.
#[derive(Debug, thiserror::Error)]
#[error("informer {name} did not sync within {limit:?}: {reason}")]
pub struct CacheSyncTimeout {
    /// The name of the informer.
    pub name: String,
    /// How long the caller waited.
    pub limit: Duration,
    /// The current failure, or the statement that the list is not complete.
    pub reason: String,
}

impl<T: Projection> Informer<T> {
    /// Returns the stored object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.0.core.store.read().get(key).cloned()
    }

    /// Returns all stored objects, in no particular order.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.0.core.store.read().iter().cloned().collect()
    }

    /// Returns the index with this name. The first call adds it to the store.
    ///
    /// All callers share the index of a name, so different functions need different names.
    pub fn index(&self, name: &'static str, values: impl Fn(&T) -> Vec<Box<str>> + Send + Sync + 'static) -> Index<T> {
        let number = self.0.core.store.write().add_index(name, Arc::new(values));
        Index {
            informer: self.clone(),
            number,
        }
    }

    /// Calls `handler` with an `Added` for each stored object, and then with every change.
    ///
    /// - Changes of one object arrive in order.
    /// - The handler must not block. It may read stores.
    /// - A handler must not subscribe or drop a subscription, because both deadlock.
    /// - The handler is not called after the subscription is dropped.
    /// - A change on which the handler panics is redelivered later, as an `Updated` or `Deleted`
    ///   that includes later changes.
    /// - A panic during the initial calls propagates to the caller.
    pub fn subscribe(&self, handler: impl Fn(&Delta<T>) + Send + Sync + 'static) -> Subscription {
        self.0.core.subscribe(Arc::new(handler))
    }

    /// Returns whether a list has ever completed.
    pub fn is_synced(&self) -> bool {
        self.0.core.synced.borrow().is_some()
    }

    /// Waits until a list that started in the current term is complete (see [`Cache::begin_term`]).
    ///
    /// # Errors
    ///
    /// Returns [`CacheSyncTimeout`] when `limit` has passed, with the name of the informer and the
    /// reason.
    pub async fn wait_for_sync(&self, limit: Duration) -> Result<(), CacheSyncTimeout> {
        let core = &self.0.core;
        let term = *core.terms.borrow();
        let mut synced = core.synced.subscribe();
        let complete = synced.wait_for(|synced| synced.is_some_and(|synced| synced >= term));
        // `core` owns the sender, so the channel cannot close during the wait.
        if let Ok(Ok(_)) = tokio::time::timeout(limit, complete).await {
            return Ok(());
        }
        let failure = core.reporter.status().failure;
        Err(CacheSyncTimeout {
            name: core.name.clone(),
            limit,
            reason: failure.map_or_else(|| "the list is not complete".to_owned(), |t| t.message),
        })
    }

    /// Returns the name of the watch, as in reports.
    pub fn name(&self) -> &str {
        &self.0.core.name
    }
}

/// The operations of an informer that do not depend on its projection.
pub trait Cache: Send + Sync {
    /// Begins a new term: the informer lists everything again, and [`Informer::wait_for_sync`]
    /// waits for that list.
    ///
    /// Call it when this process takes over from another one. The cache may lack the last writes of
    /// that process, because a watch can lag, or its connection can be dead
    /// undetected. A list that starts now contains them.
    fn begin_term(&self);

    /// Lists everything again, without a new term. Call it when the cache may be outdated although
    /// its watch is open, as after a restore of etcd from a backup.
    fn relist(&self);
}

impl<T: Projection> Cache for Informer<T> {
    fn begin_term(&self) {
        self.0.core.terms.send_modify(|term| *term += 1);
    }

    fn relist(&self) {
        self.0.attachment.relist();
    }
}

/// An index of an informer, which finds objects by a value other than their key.
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
    /// Returns the objects under `value`, in no particular order.
    pub fn get(&self, value: &str) -> Vec<Arc<T>> {
        let store = self.informer.0.core.store.read();
        store.by_index(self.number, value).cloned().collect()
    }
}

/// A subscription, which ends when it is dropped.
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
    pub(crate) fn new(shared: &SharedWatch) -> Self {
        Self {
            name: shared.watch.to_string(),
            store: RwLock::default(),
            subscribers: Mutex::new(Subscribers {
                next: 0,
                all: Vec::new(),
            }),
            synced: watch::Sender::new(None),
            terms: shared.terms.clone(),
            reporter: shared.reporter.clone(),
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
            let position = subscribers.all.iter().position(|known| known.number == number);
            let removed = position.map(|position| subscribers.all.remove(position));
            // The handler may itself hold a subscription of this informer, so it is dropped after
            // the lock is released.
            drop(subscribers);
            drop(removed);
        })))
    }

    /// Sends every stored object to every subscriber again.
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

    /// Redelivers changes on which handlers panicked, with a backoff while they keep panicking.
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
        let mut all_returned = true;
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
                all_returned &= subscriber.notify(&Delta { change, cause });
            }
        }
        self.has_missed.store(!all_returned, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> ModelState {
        let failure = self.has_missed.load(Ordering::Relaxed).then(|| WatchFailure {
            kind: ApiErrorKind::Transient,
            message: "a handler panicked (see the log); the informer redelivers the changes that it missed".to_owned(),
        });
        let store = self.store.read();
        let undecodable = store.undecodable().iter();
        ModelState {
            failure,
            undecodable: undecodable.map(|(key, error)| (key.clone(), error.clone())).collect(),
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

    /// Marks the informer as synced. All subscribers have been notified before, so a caller that
    /// waits for the sync finds every listed key in its queue.
    fn complete(&mut self, term: u64, _: Option<&str>) {
        self.synced.send_replace(Some(term));
    }
}
