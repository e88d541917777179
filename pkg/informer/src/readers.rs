//! The readers of one watch: each decodes the objects into its own type and applies them to its own
//! sink, so an object that one of them cannot decode affects no other.
//!
//! The loop delivers a complete list to a reader before it delivers changes. A reader that is
//! attached later makes the loop list once more; for the other readers that list changes nothing.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use tokio::{sync::Notify, time::Instant};

use crate::{
    Event, WatchFailure, WatchedObject,
    protocol::{self, RawEvent},
};

/// The receiver of a watch's events: a store, or another model.
pub trait Sink: Send + 'static {
    /// The type into which the objects are decoded.
    type Object: WatchedObject;

    /// Applies one event. Must not block, because nothing is read from the connection in the
    /// meantime. After a panic, the loop lists again.
    fn apply(&mut self, event: Event<Self::Object>);

    /// Called when a list that started in `term` is complete and all its objects are applied.
    ///
    /// The list is consistent as of `version`. `None` means that the CRD of the resource was
    /// deleted, and all objects with it.
    fn complete(&mut self, _term: u64, _version: Option<&str>) {}
}

/// A sink together with its decoder.
trait Decoder: Send {
    /// Decodes and applies an event. Returns the version after which a watch may resume.
    fn apply(&mut self, event: RawEvent<'_>) -> Option<String>;

    fn complete(&mut self, term: u64, version: Option<&str>);
}

struct Decoding<S>(S);

impl<S: Sink> Decoder for Decoding<S> {
    fn apply(&mut self, event: RawEvent<'_>) -> Option<String> {
        let (event, version) = protocol::decode(event);
        if let Event::Undecodable { key, error, .. } = &event {
            tracing::warn!(object = %key, error, "skipping undecodable object");
        }
        self.0.apply(event);
        version
    }

    fn complete(&mut self, term: u64, version: Option<&str>) {
        self.0.complete(term, version);
    }
}

/// The state of a reader's model, for reports.
#[derive(Default)]
pub(crate) struct ReaderState {
    pub(crate) failure: Option<WatchFailure>,
    pub(crate) undecodable: Vec<(ObjectKey, String)>,
    pub(crate) objects: usize,
}

type Inspect = Box<dyn Fn() -> ReaderState + Send + Sync>;

/// One reader.
pub(crate) struct Slot {
    /// `None` once the reader is detached.
    decoder: Mutex<Option<Box<dyn Decoder>>>,
    is_metadata_only: bool,
    /// Reads the state of the reader's model; `None` for an optional reader. An optional reader is
    /// in no report, and causes no warning when its resource is not served.
    inspect: Option<Inspect>,
    is_detached: AtomicBool,
    /// Whether the reader has received a complete list and every change since then.
    is_listed: AtomicBool,
    /// Whether the reader has ever received a complete list.
    is_synced: AtomicBool,
    /// Whether the reader panicked during the current list or since. It receives nothing until the
    /// next list.
    is_broken: AtomicBool,
    /// The time of the first panic since the last list that the reader received completely.
    failing_since: Mutex<Option<Instant>>,
}

impl Slot {
    /// Creates a reader whose resource must be served.
    pub(crate) fn required<S: Sink>(sink: S, inspect: impl Fn() -> ReaderState + Send + Sync + 'static) -> Arc<Self> {
        Self::new(sink, Some(Box::new(inspect)))
    }

    /// Creates a reader whose resource may be absent.
    pub(crate) fn optional<S: Sink>(sink: S) -> Arc<Self> {
        Self::new(sink, None)
    }

    fn new<S: Sink>(sink: S, inspect: Option<Inspect>) -> Arc<Self> {
        Arc::new(Self {
            decoder: Mutex::new(Some(Box::new(Decoding(sink)))),
            is_metadata_only: S::Object::METADATA_ONLY,
            inspect,
            is_detached: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            is_synced: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            failing_since: Mutex::new(None),
        })
    }

    /// Returns the time of the first panic since the reader's last complete list.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        *self.failing_since.lock()
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.is_synced.load(Ordering::Relaxed)
    }

    /// Returns the state of the reader's model, or `None` for an optional reader.
    pub(crate) fn state(&self) -> Option<ReaderState> {
        self.inspect.as_ref().map(|inspect| inspect())
    }

    /// Detaches the reader. It receives no event that begins after this call. May be called from
    /// the reader's own sink.
    pub(crate) fn detach(&self) {
        self.is_detached.store(true, Ordering::SeqCst);
        self.drop_if_detached();
    }

    /// Waits until the sink is no longer in use. Deadlocks if called from the sink itself.
    pub(crate) fn wait_until_idle(&self) {
        drop(self.decoder.lock().take());
    }

    fn is_detached(&self) -> bool {
        self.is_detached.load(Ordering::SeqCst)
    }

    fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Drops the sink of a detached reader. If it is in use, its user drops it afterwards.
    fn drop_if_detached(&self) {
        if self.is_detached()
            && let Some(mut decoder) = self.decoder.try_lock()
        {
            let removed = decoder.take();
            drop(decoder);
            drop(removed);
        }
    }

    /// Calls the sink unless it is detached or broken. A panic makes it broken.
    fn call<R>(&self, call: impl FnOnce(&mut dyn Decoder) -> R) -> Option<R> {
        if self.is_detached() || self.is_broken() {
            return None;
        }
        let result = {
            let mut decoder = self.decoder.lock();
            let decoder = decoder.as_deref_mut()?;
            catch_unwind(AssertUnwindSafe(|| call(decoder)))
        };
        self.drop_if_detached();
        if result.is_err() {
            tracing::error!("relisting because the sink panicked");
            self.is_broken.store(true, Ordering::Relaxed);
            self.is_listed.store(false, Ordering::Relaxed);
            self.failing_since.lock().get_or_insert_with(Instant::now);
        }
        result.ok()
    }
}

/// The readers of one watch, shared by its loop and those who attach readers.
#[derive(Default)]
pub(crate) struct Readers {
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Notified when a reader is attached.
    attached: Notify,
}

impl Readers {
    pub(crate) fn attach(&self, slot: Arc<Slot>) {
        self.slots.lock().push(slot);
        self.attached.notify_one();
    }

    pub(crate) fn remove(&self, slot: &Arc<Slot>) {
        self.slots.lock().retain(|known| !Arc::ptr_eq(known, slot));
    }

    /// Waits until a reader needs a list. Readers that have panicked do not count.
    pub(crate) async fn wait_for_unlisted(&self) {
        while !self.has_unlisted() {
            self.attached.notified().await;
        }
    }

    /// Returns the readers whose resource must be served.
    pub(crate) fn required(&self) -> Vec<Arc<Slot>> {
        let slots = self.slots.lock();
        slots.iter().filter(|slot| slot.inspect.is_some()).cloned().collect()
    }

    fn has_unlisted(&self) -> bool {
        let slots = self.slots.lock();
        let mut waiting = slots.iter().filter(|slot| !slot.is_listed.load(Ordering::Relaxed));
        waiting.any(|slot| !slot.is_broken())
    }

    fn all(&self) -> Vec<Arc<Slot>> {
        self.slots.lock().clone()
    }
}

/// The readers that take part in the current list and in the watches that follow it.
pub(crate) struct Audience {
    readers: Arc<Readers>,
    slots: Vec<Arc<Slot>>,
    /// Whether the current list or watch contains only metadata.
    is_metadata_only: bool,
}

impl Audience {
    pub(crate) fn new(readers: Arc<Readers>) -> Self {
        Self {
            readers,
            slots: Vec::new(),
            is_metadata_only: false,
        }
    }

    /// Begins a list for all current readers.
    pub(crate) fn begin_list(&mut self) {
        self.slots = self.readers.all();
        self.is_metadata_only = self.slots.iter().all(|slot| slot.is_metadata_only);
        for slot in &self.slots {
            slot.is_listed.store(false, Ordering::Relaxed);
            slot.is_broken.store(false, Ordering::Relaxed);
            slot.call(|decoder| decoder.apply(RawEvent::Relisting));
        }
    }

    /// Adds readers that were attached since the list began, unless they need more than it
    /// contains. Must be called before the first object.
    pub(crate) fn admit_late_readers(&mut self) {
        for slot in self.readers.all() {
            let is_known = self.slots.iter().any(|known| Arc::ptr_eq(known, &slot));
            if !is_known && (slot.is_metadata_only || !self.is_metadata_only) {
                slot.call(|decoder| decoder.apply(RawEvent::Relisting));
                self.slots.push(slot);
            }
        }
    }

    /// Whether to request only metadata in the current list or watch.
    pub(crate) fn is_metadata_only(&self) -> bool {
        self.is_metadata_only
    }

    /// Begins a watch, which requests only what the remaining readers need.
    pub(crate) fn begin_watch(&mut self) {
        self.slots.retain(|slot| !slot.is_detached());
        self.is_metadata_only = self.slots.iter().all(|slot| slot.is_metadata_only);
    }

    /// Applies an event to every reader. Returns the version after which a watch may resume.
    pub(crate) fn apply(&self, event: RawEvent<'_>) -> Option<String> {
        let versions = self.slots.iter().map(|slot| slot.call(|decoder| decoder.apply(event)));
        // `fold`, because each reader must receive the event.
        versions.fold(None, |known, version| known.or(version.flatten()))
    }

    /// Ends a list that was consistent as of `version`.
    pub(crate) fn complete(&self, term: u64, version: &str) {
        for slot in &self.slots {
            slot.call(|decoder| {
                decoder.apply(RawEvent::Synced);
                decoder.complete(term, Some(version));
                slot.is_listed.store(true, Ordering::Relaxed);
                slot.is_synced.store(true, Ordering::Relaxed);
                *slot.failing_since.lock() = None;
            });
        }
    }

    /// Removes all objects, because their CRD was deleted. A reader that never received a list has
    /// none, and must not count as synced.
    pub(crate) fn remove_all(&mut self, term: u64) {
        self.slots = self.readers.all();
        self.slots.retain(|slot| slot.is_synced());
        for slot in &self.slots {
            slot.is_listed.store(false, Ordering::Relaxed);
            slot.is_broken.store(false, Ordering::Relaxed);
            slot.call(|decoder| {
                decoder.apply(RawEvent::Relisting);
                decoder.apply(RawEvent::Synced);
                decoder.complete(term, None);
            });
        }
    }

    /// Whether a reader has panicked since the list began.
    pub(crate) fn has_broken(&self) -> bool {
        self.slots.iter().any(|slot| slot.is_broken())
    }

    /// Whether every reader has panicked, so that none could use the next event.
    pub(crate) fn is_all_broken(&self) -> bool {
        let mut slots = self.slots.iter().filter(|slot| !slot.is_detached());
        self.has_broken() && slots.all(|slot| slot.is_broken())
    }
}
