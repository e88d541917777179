//! The keys that are ready, in two lanes, and which of them is next.
//!
//! Architecture Invariant: no time and no state of keys; only their order.

use std::collections::BTreeMap;

/// After so many takes from the urgent lane that passed over a waiting routine key, one routine key is taken.
///
/// So the routine lane keeps a share of the takes under any load of urgent ones (a resync ends, where controller-runtime's priority
/// queue lets it wait for ever), and a burst of some hundred urgent keys goes before everything else. Tests have a larger share, to
/// see it.
pub(super) const MAX_PASSED_OVER: u32 = if cfg!(test) { 7 } else { 511 };

/// How soon a key is wanted. The smaller value is served first.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Lane {
    /// Somebody changed something and waits for the effect.
    Urgent,
    /// Nobody waits: the initial list, a resync.
    Routine,
}

/// A place in an order: unique in a queue, and smaller than every later one.
pub(super) type Ticket = u64;

#[derive(Debug)]
pub(super) struct ReadyQueue<K> {
    /// Ordered maps and not deques, so that a key can leave from the middle without leaving a gap that would have to be
    /// skipped later.
    urgent: BTreeMap<Ticket, K>,
    routine: BTreeMap<Ticket, K>,
    passed_over: u32,
}

impl<K> ReadyQueue<K> {
    pub(super) fn new() -> Self {
        Self {
            urgent: BTreeMap::new(),
            routine: BTreeMap::new(),
            passed_over: 0,
        }
    }

    pub(super) fn push(&mut self, ticket: Ticket, key: K, lane: Lane) {
        match lane {
            Lane::Urgent => self.urgent.insert(ticket, key),
            Lane::Routine => self.routine.insert(ticket, key),
        };
    }

    /// Moves a key from the routine lane to the end of the urgent one.
    pub(super) fn raise(&mut self, from: Ticket, to: Ticket) {
        if let Some(key) = self.routine.remove(&from) {
            self.urgent.insert(to, key);
        }
    }

    pub(super) fn pop(&mut self) -> Option<(Ticket, K)> {
        if (self.urgent.is_empty() || self.passed_over >= MAX_PASSED_OVER)
            && let Some(next) = self.routine.pop_first()
        {
            self.passed_over = 0;
            return Some(next);
        }
        let next = self.urgent.pop_first()?;
        self.passed_over = if self.routine.is_empty() {
            0
        } else {
            self.passed_over + 1
        };
        Some(next)
    }

    /// The first key of each lane.
    pub(super) fn heads(&self) -> impl Iterator<Item = &K> {
        self.urgent.values().take(1).chain(self.routine.values().take(1))
    }

    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.routine.len()
    }

    pub(super) fn clear(&mut self) {
        self.urgent.clear();
        self.routine.clear();
    }

    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn find(&self, ticket: Ticket, lane: Lane) -> Option<&K> {
        match lane {
            Lane::Urgent => self.urgent.get(&ticket),
            Lane::Routine => self.routine.get(&ticket),
        }
    }
}
