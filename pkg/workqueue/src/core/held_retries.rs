//! The retries that wait for a token, and the order in which they receive one.
//!
//! Flows take turns, so that the failing keys of one namespace do not delay the retries of another.
//! In each flow, the order is first in, first out.
//!
//! Architecture Invariant: no times and no state of keys, only their order.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Bound::{Excluded, Unbounded},
};

use super::ready_queue::Ticket;

/// A group of keys whose retries share their turns, such as those of one namespace.
pub type Flow = u64;

/// Returns the flow of the keys that have this in common.
pub fn flow_of<T: Hash>(common: &T) -> Flow {
    let mut hasher = DefaultHasher::new();
    common.hash(&mut hasher);
    hasher.finish()
}

#[derive(Debug)]
pub(super) struct HeldRetries<K> {
    keys: BTreeMap<(Flow, Ticket), K>,
    /// The flow that had the last turn.
    last: Flow,
}

impl<K> HeldRetries<K> {
    pub(super) fn new() -> Self {
        Self {
            keys: BTreeMap::new(),
            last: Flow::MAX,
        }
    }

    pub(super) fn insert(&mut self, flow: Flow, ticket: Ticket, key: K) {
        self.keys.insert((flow, ticket), key);
    }

    pub(super) fn remove(&mut self, flow: Flow, ticket: Ticket) {
        self.keys.remove(&(flow, ticket));
    }

    /// Removes and returns the first key of the flow whose turn it is.
    pub(super) fn pop(&mut self) -> Option<K> {
        let after = self.keys.range((Excluded((self.last, Ticket::MAX)), Unbounded)).next();
        let (position, _) = after.or_else(|| self.keys.first_key_value())?;
        let position = *position;
        self.last = position.0;
        self.keys.remove(&position)
    }

    /// Removes and returns the first key of this flow, if there is one.
    pub(super) fn pop_from(&mut self, flow: Flow) -> Option<K> {
        let (position, _) = self.keys.range((flow, 0)..=(flow, Ticket::MAX)).next()?;
        let position = *position;
        self.keys.remove(&position)
    }

    /// Returns whether there is a key of this flow.
    pub(super) fn contains(&self, flow: Flow) -> bool {
        self.keys.range((flow, 0)..=(flow, Ticket::MAX)).next().is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }

    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn find(&self, flow: Flow, ticket: Ticket) -> Option<&K> {
        self.keys.get(&(flow, ticket))
    }
}
