//! The way of keys into a queue: at once while there are workers, and held back while there are none.
//!
//! A standby hears of every change and works on none. Its keys are held here, each once, and not in the queue, whose metrics would tell of
//! work that waits for days.

use std::collections::HashSet;

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use portreeve_workqueue::{Lane, Queue};

/// How many keys are held before those of objects that are gone are looked for.
const PATIENCE: usize = 1_024;

/// Where informers bring keys.
pub(crate) struct EnqueueGate {
    queue: Queue<ObjectKey>,
    held: Mutex<Option<Held>>,
    /// Whether there is anything to decide on for a key.
    is_known: Box<dyn Fn(&ObjectKey) -> bool + Send + Sync>,
}

struct Held {
    keys: HashSet<ObjectKey>,
    /// How many keys are too many: bounded by twice the objects that exist, however many come and go.
    most: usize,
}

impl EnqueueGate {
    /// One that holds keys back until [`EnqueueGate::open`].
    pub(crate) fn new(queue: Queue<ObjectKey>, is_known: impl Fn(&ObjectKey) -> bool + Send + Sync + 'static) -> Self {
        let held = Held {
            keys: HashSet::new(),
            most: PATIENCE,
        };
        Self {
            queue,
            held: Mutex::new(Some(held)),
            is_known: Box::new(is_known),
        }
    }

    /// Wants the key.
    pub(crate) fn add(&self, key: ObjectKey, lane: Lane) {
        let mut held = self.held.lock();
        let Some(held) = held.as_mut() else {
            drop(held);
            self.queue.add(key, lane);
            return;
        };
        held.keys.insert(key);
        if held.keys.len() > held.most {
            // There is nothing to do about what is gone.
            held.keys.retain(|key| (self.is_known)(key));
            held.keys.shrink_to(held.keys.len() * 2);
            held.most = held.keys.len() * 2 + PATIENCE;
        }
    }

    /// Queues what was held, and whatever comes from now on.
    pub(crate) fn open(&self) {
        let held = self.held.lock().take();
        for key in held.into_iter().flat_map(|held| held.keys) {
            self.queue.add(key, Lane::Routine);
        }
    }
}

#[cfg(test)]
mod tests {
    use portreeve_workqueue::Metrics;
    use prometheus::Registry;

    use super::*;

    fn queue() -> Queue<ObjectKey> {
        Queue::new("Foos", &Metrics::register(&Registry::new()).unwrap())
    }

    fn key(number: usize) -> ObjectKey {
        ObjectKey::namespaced("n", format!("{number}"))
    }

    #[test]
    fn keys_are_held_once_each_until_there_are_workers() {
        let queue = queue();
        let gate = EnqueueGate::new(queue.clone(), |_| true);
        for number in [1, 2, 1] {
            gate.add(key(number), Lane::Urgent);
        }
        assert_eq!(queue.observe().ready, 0);
        gate.open();
        assert_eq!(queue.observe().ready, 2);
        gate.add(key(3), Lane::Urgent);
        assert_eq!(queue.observe().ready, 3);
    }

    #[test]
    fn a_standby_does_not_grow_with_what_comes_and_goes() {
        let queue = queue();
        let gate = EnqueueGate::new(queue.clone(), |key| key.name.ends_with("000"));
        for number in 0..100_000 {
            gate.add(key(number), Lane::Urgent);
            let held = gate.held.lock().as_ref().map_or(0, |held| held.keys.len());
            assert!(held <= 2 * 100 + PATIENCE, "{held} keys are held");
        }
        gate.open();
        let ready = queue.observe().ready;
        assert!((100..=2 * 100 + PATIENCE).contains(&ready), "{ready}");
    }
}
