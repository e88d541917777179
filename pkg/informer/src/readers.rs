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

    /// Called when the watch has ended. Until [`Sink::resumed`] or the next complete list, nothing
    /// is known about what happens.
    fn disconnected(&mut self) {}

    /// Called when the watch has resumed at the last received version.
    ///
    /// That version may be in the future: if etcd was restored from a backup in the meantime, the
    /// apiserver sends nothing until it is reached.
    fn resumed(&mut self) {}
}

/// A sink that receives undecoded events.
trait RawSink: Send {
    /// Decodes and applies an event. Returns the version after which a watch may resume.
    fn apply(&mut self, event: RawEvent<'_>) -> Option<String>;

    fn complete(&mut self, term: u64, version: Option<&str>);

    fn disconnected(&mut self);

    fn resumed(&mut self);
}

struct DecodingSink<S>(S);

impl<S: Sink> RawSink for DecodingSink<S> {
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

    fn disconnected(&mut self) {
        self.0.disconnected();
    }

    fn resumed(&mut self) {
        self.0.resumed();
    }
}

/// The state of a reader's model, for reports.
#[derive(Default)]
pub(crate) struct ModelState {
    pub(crate) failure: Option<WatchFailure>,
    pub(crate) undecodable: Vec<(ObjectKey, String)>,
    pub(crate) objects: usize,
}

type Inspect = Box<dyn Fn() -> ModelState + Send + Sync>;

/// A reader that is attached to the watch.
pub(crate) struct Reader {
    /// `None` once the reader is detached.
    sink: Mutex<Option<Box<dyn RawSink>>>,
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
    has_panicked: AtomicBool,
    /// The time of the first panic since the last list that the reader received completely.
    failing_since: Mutex<Option<Instant>>,
}

impl Reader {
    /// Creates a reader whose resource must be served.
    pub(crate) fn required<S: Sink>(sink: S, inspect: impl Fn() -> ModelState + Send + Sync + 'static) -> Arc<Self> {
        Self::new(sink, Some(Box::new(inspect)))
    }

    /// Creates a reader whose resource may be absent.
    pub(crate) fn optional<S: Sink>(sink: S) -> Arc<Self> {
        Self::new(sink, None)
    }

    /// Returns whether the resource must be served.
    pub(crate) fn is_required(&self) -> bool {
        self.inspect.is_some()
    }

    fn new<S: Sink>(sink: S, inspect: Option<Inspect>) -> Arc<Self> {
        Arc::new(Self {
            sink: Mutex::new(Some(Box::new(DecodingSink(sink)))),
            is_metadata_only: S::Object::METADATA_ONLY,
            inspect,
            is_detached: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            is_synced: AtomicBool::new(false),
            has_panicked: AtomicBool::new(false),
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
    pub(crate) fn state(&self) -> Option<ModelState> {
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
        drop(self.sink.lock().take());
    }

    /// Prepares the reader for a list, also after a panic.
    fn expect_list(&self) {
        self.is_listed.store(false, Ordering::Relaxed);
        self.has_panicked.store(false, Ordering::Relaxed);
    }

    fn is_detached(&self) -> bool {
        self.is_detached.load(Ordering::SeqCst)
    }

    fn has_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed)
    }

    /// Drops the sink of a detached reader. If it is in use, its user drops it afterwards.
    fn drop_if_detached(&self) {
        if self.is_detached()
            && let Some(mut sink) = self.sink.try_lock()
        {
            let removed = sink.take();
            drop(sink);
            drop(removed);
        }
    }

    /// Calls the sink, unless the reader is detached or has panicked. Records a panic.
    fn call<R>(&self, call: impl FnOnce(&mut dyn RawSink) -> R) -> Option<R> {
        if self.is_detached() || self.has_panicked() {
            return None;
        }
        let result = {
            let mut sink = self.sink.lock();
            let sink = sink.as_deref_mut()?;
            catch_unwind(AssertUnwindSafe(|| call(sink)))
        };
        self.drop_if_detached();
        if result.is_err() {
            tracing::error!("relisting because the sink panicked");
            self.has_panicked.store(true, Ordering::Relaxed);
            self.is_listed.store(false, Ordering::Relaxed);
            self.failing_since.lock().get_or_insert_with(Instant::now);
        }
        result.ok()
    }
}

/// The readers of one watch, shared by its loop and those who attach readers.
#[derive(Default)]
pub(crate) struct Readers {
    readers: Mutex<Vec<Arc<Reader>>>,
    /// Notified when a reader is attached, or requests a list.
    attached: Notify,
}

impl Readers {
    pub(crate) fn attach(&self, reader: Arc<Reader>) {
        self.readers.lock().push(reader);
        self.attached.notify_one();
    }

    pub(crate) fn remove(&self, reader: &Arc<Reader>) {
        self.readers.lock().retain(|known| !Arc::ptr_eq(known, reader));
    }

    /// Makes the loop list again.
    pub(crate) fn request_list(&self, reader: &Reader) {
        reader.is_listed.store(false, Ordering::Relaxed);
        self.attached.notify_one();
    }

    /// Waits until a reader needs a list. Readers that have panicked do not count.
    pub(crate) async fn wait_for_unlisted(&self) {
        while !self.has_unlisted() {
            self.attached.notified().await;
        }
    }

    /// Returns the readers whose resource must be served.
    pub(crate) fn required(&self) -> Vec<Arc<Reader>> {
        let readers = self.readers.lock();
        readers.iter().filter(|reader| reader.is_required()).cloned().collect()
    }

    /// Returns whether every reader has received a complete list and every change since then.
    pub(crate) fn all_listed(&self) -> bool {
        let readers = self.readers.lock();
        readers.iter().all(|reader| reader.is_listed.load(Ordering::Relaxed))
    }

    fn has_unlisted(&self) -> bool {
        let readers = self.readers.lock();
        let mut waiting = readers
            .iter()
            .filter(|reader| !reader.is_listed.load(Ordering::Relaxed));
        waiting.any(|reader| !reader.has_panicked())
    }

    fn all(&self) -> Vec<Arc<Reader>> {
        self.readers.lock().clone()
    }
}

/// The readers that take part in the current list and in the watches that follow it.
pub(crate) struct Participants {
    attached: Arc<Readers>,
    readers: Vec<Arc<Reader>>,
    /// Whether the current list or watch contains only metadata.
    is_metadata_only: bool,
}

impl Participants {
    pub(crate) fn new(attached: Arc<Readers>) -> Self {
        Self {
            attached,
            readers: Vec::new(),
            is_metadata_only: false,
        }
    }

    /// Begins a list for all current readers.
    pub(crate) fn begin_list(&mut self) {
        self.readers = self.attached.all();
        self.is_metadata_only = self.readers.iter().all(|reader| reader.is_metadata_only);
        for reader in &self.readers {
            reader.expect_list();
            reader.call(|sink| sink.apply(RawEvent::Relisting));
        }
    }

    /// Adds readers that were attached since the list began, unless they need more than it
    /// contains. Must be called before the first object.
    pub(crate) fn admit_late_readers(&mut self) {
        for reader in self.attached.all() {
            let is_known = self.readers.iter().any(|known| Arc::ptr_eq(known, &reader));
            if !is_known && (reader.is_metadata_only || !self.is_metadata_only) {
                reader.call(|sink| sink.apply(RawEvent::Relisting));
                self.readers.push(reader);
            }
        }
    }

    /// Whether to request only metadata in the current list or watch.
    pub(crate) fn is_metadata_only(&self) -> bool {
        self.is_metadata_only
    }

    /// Begins a watch, which requests only what the remaining readers need.
    pub(crate) fn begin_watch(&mut self) {
        self.readers.retain(|reader| !reader.is_detached());
        self.is_metadata_only = self.readers.iter().all(|reader| reader.is_metadata_only);
    }

    /// Applies an event to every reader. Returns the version after which a watch may resume.
    pub(crate) fn apply(&self, event: RawEvent<'_>) -> Option<String> {
        let versions = self.readers.iter().map(|reader| reader.call(|sink| sink.apply(event)));
        // `fold`, because each reader must receive the event.
        versions.fold(None, |known, version| known.or(version.flatten()))
    }

    /// Reports that the watch has ended.
    pub(crate) fn disconnected(&self) {
        for reader in &self.readers {
            reader.call(|sink| sink.disconnected());
        }
    }

    /// Reports that the watch has resumed at the last received version.
    pub(crate) fn resumed(&self) {
        for reader in &self.readers {
            reader.call(|sink| sink.resumed());
        }
    }

    /// Ends a list that was consistent as of `version`.
    pub(crate) fn complete(&self, term: u64, version: &str) {
        for reader in &self.readers {
            reader.call(|sink| {
                sink.apply(RawEvent::Synced);
                sink.complete(term, Some(version));
                reader.is_listed.store(true, Ordering::Relaxed);
                reader.is_synced.store(true, Ordering::Relaxed);
                *reader.failing_since.lock() = None;
            });
        }
    }

    /// Removes all objects, because their CRD was deleted. A reader that never received a list has
    /// none, and must not count as synced.
    pub(crate) fn remove_all(&mut self, term: u64) {
        self.readers = self.attached.all();
        self.readers.retain(|reader| reader.is_synced());
        for reader in &self.readers {
            reader.expect_list();
            reader.call(|sink| {
                sink.apply(RawEvent::Relisting);
                sink.apply(RawEvent::Synced);
                sink.complete(term, None);
            });
        }
    }

    /// Whether a reader has panicked since the list began.
    pub(crate) fn has_panicked_reader(&self) -> bool {
        self.readers.iter().any(|reader| reader.has_panicked())
    }

    /// Whether every reader has panicked, so that none could use the next event.
    pub(crate) fn all_have_panicked(&self) -> bool {
        let mut readers = self.readers.iter().filter(|reader| !reader.is_detached());
        self.has_panicked_reader() && readers.all(|reader| reader.has_panicked())
    }
}
