//! Operations on the whole graph: finding all work in it, and measuring its size.

use super::{FollowUps, Graph, Id, InvalidReason, InvalidReference};
use crate::{Uid, absent_owner_cache::Lookups};

/// The size of the graph.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Statistics {
    /// For each kind: apiVersion, kind, the number of nodes that a watch reports, and the number
    /// of virtual nodes.
    pub nodes: Vec<(Box<str>, Box<str>, u32, u32)>,
    /// The number of references.
    pub edges: usize,
    /// The approximate memory that the graph takes, in bytes.
    pub bytes: usize,
    /// The number of owners that are proven absent and to which something refers.
    pub absent: usize,
    /// Counts of lookups of such proofs.
    pub lookups: Lookups,
    /// The number of owners that wait for dependents that block their deletion.
    pub blocked: usize,
    /// The numbers of invalid references, by reason.
    pub invalid: [(InvalidReason, u64); 3],
}

impl Graph {
    /// Collects all work in the graph, for a replica that becomes active.
    pub fn full_scan(&self, follow_ups: &mut FollowUps) {
        for (id, node) in self.nodes.iter() {
            if node.is_orphaning() {
                follow_ups.orphan.push(node.uid);
            }
            let is_unknown = !node.is_observed() && !self.is_lost(id);
            if is_unknown || node.is_waiting_for_dependents() || self.is_due(id) {
                follow_ups.attempt.push(node.uid);
            }
            self.report_invalid(id, follow_ups);
        }
    }

    /// Reports the invalid references of a node.
    fn report_invalid(&self, id: Id, follow_ups: &mut FollowUps) {
        for edge in self.references_of(id) {
            if let Some(reason) = self.edges[edge].invalid {
                follow_ups.invalid.push(InvalidReference {
                    dependent: self.identity(id),
                    owner: self.referenced_owner(edge),
                    reason,
                });
            }
        }
    }

    /// Returns whether the node has an owner that possibly does not keep it.
    pub(super) fn is_doubtful(&self, id: Id) -> bool {
        self.references_of(id).any(|edge| {
            let owner = &self.nodes[self.edges[edge].owner];
            let is_kept = owner.is_observed() && self.invalidity(edge).is_none();
            !is_kept && !self.is_read_separately(edge)
        })
    }

    /// Returns the owners of a node of which nothing is known.
    pub(super) fn unknown_owners(&self, id: Id) -> impl Iterator<Item = Uid> {
        let unknown = self.references_of(id).filter(|edge| self.is_read_separately(*edge));
        let owners = unknown.map(|edge| self.edges[edge].owner);
        owners
            .filter(|owner| !self.is_lost(*owner))
            .map(|owner| self.nodes[owner].uid)
    }

    /// Returns whether nothing is known of an owner. It then gets its own attempt, whose result
    /// queues the dependents.
    fn is_read_separately(&self, edge: Id) -> bool {
        !self.nodes[self.edges[edge].owner].is_observed() && self.known_owner_state(edge).is_none()
    }

    /// Returns the size of the graph.
    pub fn statistics(&self) -> Statistics {
        let kinds = self.tallies.iter().enumerate().filter_map(|(number, tally)| {
            let kind = self.kinds.get(u32::try_from(number).ok()?)?;
            Some((
                kind.api_version.clone(),
                kind.kind.clone(),
                tally.observed,
                tally.virtual_,
            ))
        });
        let blocked = self.waiting.iter().filter(|id| self.nodes[**id].blocking > 0).count();
        Statistics {
            nodes: kinds.collect(),
            edges: self.edges.len(),
            bytes: self.bytes(),
            absent: self.absent.len(),
            lookups: self.absent.lookups,
            blocked,
            invalid: InvalidReason::ALL.map(|reason| (reason, self.invalid[reason as usize])),
        }
    }

    /// Counts only what grows with the number of objects.
    fn bytes(&self) -> usize {
        /// The approximate overhead of the allocator for a short string.
        const OVERHEAD: usize = 16;
        // Each slot holds an entry and a control byte, and the table leaves one slot in eight free.
        let index = self.index.capacity() * 8 / 7 * (size_of::<(u32, Id)>() + 1);
        let names = self.name_bytes + self.nodes.len() * OVERHEAD;
        self.nodes.bytes() + self.edges.bytes() + index + names
    }

    /// Returns whether there are no nodes.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 0
    }
}
