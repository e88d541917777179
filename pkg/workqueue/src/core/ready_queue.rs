//! The ready keys in their two lanes, and the choice of the next key.
//!
//! Architecture Invariant: no times and no state of keys, only their order.

use std::collections::BTreeMap;

/// The number of urgent keys that may be taken ahead of a waiting routine key before one routine
/// key is taken.
///
/// This gives the routine lane a share of the takes under any load of urgent keys, so that a resync
/// completes. (controller-runtime's priority queue can starve it forever.) A burst of a few hundred
/// urgent keys still comes before everything else. Tests use a small number, so that a few takes
/// reach a routine key.
pub(super) const MAX_PASSED_OVER: u32 = if cfg!(test) { 7 } else { 511 };

/// The priority of a key. The smaller value is taken first.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Lane {
    /// A change whose effect somebody waits for.
    Urgent,
    /// Work that nobody waits for, such as the initial list or a resync.
    Routine,
}

/// The position of a key in an ordered map. It is unique in a queue, and smaller than every later
/// position.
pub(super) type Ticket = u64;

#[derive(Debug)]
pub(super) struct ReadyQueue<K> {
    /// Ordered maps instead of deques, so that a key can be removed from the middle without leaving
    /// a gap.
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

    /// Returns the first key of each lane.
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
