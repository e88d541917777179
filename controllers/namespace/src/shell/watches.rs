//! Notices when the last object of a resource leaves a namespace.
//!
//! A watch is opened when a namespace waits for objects of its resource, and closed [`KEEP`] after
//! the last one has. It is shared with the other controllers of the group, so where one is open
//! already, no request is sent for it but a list.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_informer::{Attachment, Event, MetadataOnly, SharedWatches, Sink, Watch};
use portreeve_workqueue::{Lane, Queue};
use tokio::time::Instant;

/// How long a watch stays open that nobody needs: each new reader makes a shared watch list again,
/// so tenants must not cause that with each namespace.
pub(super) const KEEP: Duration = Duration::from_mins(5);

/// The open watches.
pub(super) struct ContentWatches {
    shared: SharedWatches,
    queue: Queue<Arc<str>>,
    open: Mutex<HashMap<Resource, OpenWatch>>,
}

struct OpenWatch {
    waiting: Waiting,
    /// Since when nobody needs it.
    unused_since: Option<Instant>,
    _attachment: Attachment,
}

/// The namespaces that wait for a resource.
type Waiting = Arc<Mutex<HashSet<Arc<str>>>>;

impl ContentWatches {
    pub(super) fn new(shared: SharedWatches, queue: Queue<Arc<str>>) -> Self {
        Self {
            shared,
            queue,
            open: Mutex::default(),
        }
    }

    /// Makes a namespace wait for exactly these resources. It is queued when the last object of one
    /// of them is deleted.
    ///
    /// List the resources after this call: an object that is deleted before it may cause nothing.
    pub(super) fn wait_for(&self, namespace: &Arc<str>, resources: &[Resource]) {
        let mut open = self.open.lock();
        for (resource, watch) in &mut *open {
            let mut waiting = watch.waiting.lock();
            let was_needed = !waiting.is_empty();
            if !resources.contains(resource) {
                waiting.remove(namespace);
            }
            if was_needed && waiting.is_empty() {
                watch.unused_since = Some(Instant::now());
            }
        }
        for resource in resources {
            let watch = open.entry(resource.clone()).or_insert_with(|| self.start(resource));
            watch.waiting.lock().insert(Arc::clone(namespace));
            watch.unused_since = None;
        }
    }

    /// Closes the watches that nobody has needed for [`KEEP`].
    pub(super) fn close_unused(&self) {
        let is_needed = |watch: &mut OpenWatch| watch.unused_since.is_none_or(|since| since.elapsed() < KEEP);
        self.open.lock().retain(|_, watch| is_needed(watch));
    }

    fn start(&self, resource: &Resource) -> OpenWatch {
        let waiting = Waiting::default();
        let sink = ContentSink {
            queue: self.queue.clone(),
            waiting: Arc::clone(&waiting),
            known: HashMap::new(),
            listed: None,
        };
        OpenWatch {
            waiting,
            unused_since: None,
            _attachment: self.shared.attach(Watch::all(resource.clone()), sink),
        }
    }
}

/// The UIDs of objects, by namespace.
type Uids = HashMap<Arc<str>, HashSet<Arc<str>>>;

/// Receives the changes of one resource.
struct ContentSink {
    queue: Queue<Arc<str>>,
    waiting: Waiting,
    /// The objects that are being deleted, in every namespace: one may begin to wait later.
    known: Uids,
    /// The objects of the list that is in progress.
    listed: Option<Uids>,
}

impl ContentSink {
    fn add(objects: &mut Uids, object: &MetadataOnly) {
        let metadata = &object.metadata;
        if let Some(namespace) = metadata.namespace.as_ref().filter(|_| metadata.is_terminating()) {
            let uids = objects.entry(Arc::clone(namespace)).or_default();
            uids.insert(Arc::clone(&metadata.uid));
        }
    }

    /// Queues a namespace if nothing is left in it, as far as this watch knows.
    fn check(&self, namespace: &Arc<str>) {
        if !self.known.contains_key(namespace) && self.waiting.lock().contains(namespace) {
            self.queue.add(Arc::clone(namespace), Lane::Urgent);
        }
    }
}

impl Sink for ContentSink {
    type Object = MetadataOnly;

    fn apply(&mut self, event: Event<MetadataOnly>) {
        match event {
            Event::Relisting => self.listed = Some(Uids::new()),
            Event::Listed(object) => Self::add(self.listed.get_or_insert_default(), &object),
            Event::Applied(object) => Self::add(&mut self.known, &object),
            Event::Deleted(object) => {
                let Some(namespace) = object.metadata.namespace else {
                    return;
                };
                if let Some(uids) = self.known.get_mut(&namespace) {
                    uids.remove(&object.metadata.uid);
                    if uids.is_empty() {
                        self.known.remove(&namespace);
                    }
                }
                self.check(&namespace);
            }
            // Whether one is left, the next attempt finds out.
            Event::DeletedUndecodable(key) => {
                if let Some(namespace) = key.namespace {
                    self.known.remove(&namespace);
                    self.check(&namespace);
                }
            }
            Event::Undecodable { .. } | Event::Synced => {}
        }
    }

    fn complete(&mut self, _term: u64, _version: Option<&str>) {
        self.known = self.listed.take().unwrap_or_default();
        let waiting: Vec<_> = self.waiting.lock().iter().cloned().collect();
        for namespace in waiting {
            self.check(&namespace);
        }
    }
}

#[cfg(test)]
mod tests;
