//! Passes keys to a queue while there are workers, and holds keys back while there are none.
//!
//! A standby observes every change but reconciles none. The gate holds its keys, each once. They
//! must not sit in the queue, whose metrics would then report work that waits for days.

use std::collections::HashSet;

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use portreeve_workqueue::{Lane, Queue};

/// How many keys are held before the gate drops those of deleted objects.
const PRUNE_THRESHOLD: usize = 1_024;

/// The entrance to a queue, to which informers add keys.
pub(super) struct EnqueueGate {
    queue: Queue<ObjectKey>,
    held: Mutex<Option<Held>>,
    /// The check whether there is anything to decide on for a key.
    is_known: Box<dyn Fn(&ObjectKey) -> bool + Send + Sync>,
}

struct Held {
    keys: HashSet<ObjectKey>,
    /// The number of keys above which those of deleted objects are dropped. It stays below twice
    /// the number of existing objects plus `PRUNE_THRESHOLD`, whatever the churn.
    most: usize,
}

impl EnqueueGate {
    /// Creates a gate that holds keys back until [`EnqueueGate::open`].
    pub(super) fn new(queue: Queue<ObjectKey>, is_known: impl Fn(&ObjectKey) -> bool + Send + Sync + 'static) -> Self {
        let held = Held {
            keys: HashSet::new(),
            most: PRUNE_THRESHOLD,
        };
        Self {
            queue,
            held: Mutex::new(Some(held)),
            is_known: Box::new(is_known),
        }
    }

    /// Adds a key to the queue, or to the held keys.
    pub(super) fn add(&self, key: ObjectKey, lane: Lane) {
        if let Some(key) = self.hold(key) {
            self.queue.add(key, lane);
        }
    }

    /// Like [`EnqueueGate::add`], for a key of which nothing has changed.
    pub(super) fn resync(&self, key: ObjectKey) {
        if let Some(key) = self.hold(key) {
            self.queue.resync(key);
        }
    }

    /// Adds a key to the held keys. Returns it if the gate is open.
    fn hold(&self, key: ObjectKey) -> Option<ObjectKey> {
        let mut held = self.held.lock();
        let Some(held) = held.as_mut() else { return Some(key) };
        held.keys.insert(key);
        if held.keys.len() > held.most {
            // Keys of deleted objects need no reconcile.
            held.keys.retain(|key| (self.is_known)(key));
            held.keys.shrink_to(held.keys.len() * 2);
            held.most = held.keys.len() * 2 + PRUNE_THRESHOLD;
        }
        None
    }

    /// Returns whether keys pass.
    pub(super) fn is_open(&self) -> bool {
        self.held.lock().is_none()
    }

    /// Queues the held keys, and lets all later keys pass.
    pub(super) fn open(&self) {
        let held = self.held.lock().take();
        for key in held.into_iter().flat_map(|held| held.keys) {
            self.queue.add(key, Lane::Routine);
        }
    }
}

#[cfg(test)]
mod tests {
    use portreeve_metrics::Registry;
    use portreeve_workqueue::Metrics;

    use super::*;

    fn queue() -> Queue<ObjectKey> {
        Queue::new("foo", &Metrics::register(&Registry::new()).unwrap())
    }

    fn key(number: usize) -> ObjectKey {
        ObjectKey::namespaced("n", format!("{number}"))
    }

    #[test]
    fn keys_are_held_once_each_until_the_gate_opens() {
        let queue = queue();
        let gate = EnqueueGate::new(queue.clone(), |_| true);
        for number in [1, 2, 1] {
            gate.add(key(number), Lane::Urgent);
        }
        assert_eq!(queue.observe().ready, 0);
        assert!(!gate.is_open());
        gate.open();
        assert!(gate.is_open());
        assert_eq!(queue.observe().ready, 2);
        gate.add(key(3), Lane::Urgent);
        assert_eq!(queue.observe().ready, 3);
    }

    #[test]
    fn churn_does_not_grow_the_held_keys() {
        let queue = queue();
        let gate = EnqueueGate::new(queue.clone(), |key| key.name.ends_with("000"));
        for number in 0..100_000 {
            gate.add(key(number), Lane::Urgent);
            let held = gate.held.lock().as_ref().map_or(0, |held| held.keys.len());
            assert!(held <= 2 * 100 + PRUNE_THRESHOLD, "{held} keys are held");
        }
        gate.open();
        let ready = queue.observe().ready;
        assert!((100..=2 * 100 + PRUNE_THRESHOLD).contains(&ready), "{ready}");
    }
}
