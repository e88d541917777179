//! Remembers the latest events, so that a repetition becomes part of a series.
//!
//! Architecture Invariant: pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// How many events are remembered, as by client-go's `EventCorrelator`. Each takes about 200 bytes.
const REMEMBERED: usize = 4_096;

/// The events that were written last.
#[derive(Default)]
pub(super) struct SeriesMemory {
    known: HashMap<u64, Series>,
    /// The events by the order of their last repetitions.
    order: BTreeMap<u64, u64>,
    next: u64,
}

struct Series {
    name: Arc<str>,
    count: i32,
    order: u64,
}

impl SeriesMemory {
    /// Returns the name of the object of this event, and the number of occurrences including the
    /// next one. Returns `None` if the event is not remembered.
    pub(super) fn repetition(&self, event: u64) -> Option<(Arc<str>, i32)> {
        let series = self.known.get(&event)?;
        Some((Arc::clone(&series.name), series.count.saturating_add(1)))
    }

    /// Remembers that an event was written. Forgets the one that was repeated least recently, if
    /// there are too many.
    pub(super) fn written(&mut self, event: u64, name: Arc<str>, count: i32) {
        self.forget(event);
        let order = self.next;
        self.next += 1;
        self.known.insert(event, Series { name, count, order });
        self.order.insert(order, event);
        if self.known.len() > REMEMBERED
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.known.remove(&oldest);
        }
    }

    /// Forgets an event whose object no longer exists.
    pub(super) fn forget(&mut self, event: u64) {
        if let Some(series) = self.known.remove(&event) {
            self.order.remove(&series.order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_repeated_event_is_forgotten() {
        let mut memory = SeriesMemory::default();
        for event in 0..4_096 {
            memory.written(event, "a".into(), 1);
        }
        memory.written(0, "a".into(), 2);
        memory.written(5_000, "b".into(), 1);
        assert_eq!(memory.repetition(0), Some(("a".into(), 3)));
        assert_eq!(memory.repetition(1), None);
        assert_eq!(memory.repetition(2), Some(("a".into(), 2)));
        memory.forget(2);
        assert_eq!(memory.repetition(2), None);
        assert_eq!((memory.known.len(), memory.order.len()), (4_095, 4_095));
    }
}
