//! The keys of the queues.

use std::hash::{Hash, Hasher};

use portreeve_garbagecollector_graph::Uid;
use portreeve_workqueue::{Flow, Lane, Queue};

use super::CollectorContext;

/// An object in a queue. It is equal to another one with the same UID.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedObject {
    pub(super) uid: Uid,
    /// The number of its namespace when it was queued.
    namespace: u32,
}

impl QueuedObject {
    /// Returns the flow in the retry budget: the objects of one namespace share one.
    ///
    /// The graph may use the number of a namespace again. Two namespaces then share a flow until
    /// the keys of the former one have left the queue.
    pub(super) fn flow(&self) -> Flow {
        self.namespace.into()
    }
}

impl PartialEq for QueuedObject {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl Eq for QueuedObject {}

impl Hash for QueuedObject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
    }
}

impl CollectorContext {
    /// Queues an object.
    pub(super) fn add(&self, queue: &Queue<QueuedObject>, uid: Uid, lane: Lane) {
        let namespace = self.graph.lock().namespace_number(uid);
        queue.add(QueuedObject { uid, namespace }, lane);
    }
}
