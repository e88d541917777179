//! The whole graph at once: what there is to do in it, and how big it is.

use super::{Edge, FollowUps, Graph, Id, InvalidReason, InvalidReference, Node};
use crate::absent_owner_cache::Lookups;

/// How big the graph is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Statistics {
    /// Of each kind: apiVersion, kind, how many nodes a watch shows, and how many are known by references alone.
    pub nodes: Vec<(Box<str>, Box<str>, u32, u32)>,
    /// How many references there are.
    pub edges: usize,
    /// How much memory the graph takes, nearly.
    pub bytes: usize,
    /// How many owners are proven absent to which something refers.
    pub absent: usize,
    /// How often such a proof was looked for.
    pub lookups: Lookups,
    /// How many owners wait for dependents that block them.
    pub blocked: usize,
    /// How many references cannot mean what they say, by reason.
    pub invalid: Vec<(InvalidReason, u64)>,
}

impl Graph {
    /// All that may have to be done, for who begins to act.
    pub fn full_scan(&self, follow_ups: &mut FollowUps) {
        for (id, node) in self.nodes.iter() {
            if node.is_orphaning() {
                follow_ups.orphan.push(node.uid);
            }
            if !node.is_observed() || node.is_waiting_for_dependents() || self.is_doubtful(node) {
                follow_ups.attempt.push(node.uid);
            }
            self.tell_of_invalid(id, node, follow_ups);
            if node.is_waiting_for_dependents() {
                let dependents = self.dependents(id);
                follow_ups
                    .attempt
                    .extend(dependents.map(|dependent| self.nodes[dependent].uid));
            }
        }
    }

    fn tell_of_invalid(&self, id: Id, node: &Node, follow_ups: &mut FollowUps) {
        let mut next = node.owners;
        while let Some(edge) = next {
            if let Some(reason) = self.edges[edge].invalid {
                follow_ups.invalid.push(InvalidReference {
                    dependent: self.identity(id),
                    owner: self.referenced_owner(edge),
                    reason,
                });
            }
            next = self.edges[edge].next_owner;
        }
    }

    /// Whether one of its owners may not keep it.
    fn is_doubtful(&self, node: &Node) -> bool {
        let mut next = node.owners;
        while let Some(edge) = next {
            let Edge { owner, next_owner, .. } = self.edges[edge];
            let is_kept = self.nodes[owner].is_observed() && self.invalidity(edge).is_none();
            // A virtual owner is asked for itself, and tells who depends on it.
            let is_asked = !self.nodes[owner].is_observed() && self.known_owner_state(edge).is_none();
            if !is_kept && !is_asked {
                return true;
            }
            next = next_owner;
        }
        false
    }

    /// How big it is.
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
            invalid: InvalidReason::ALL
                .iter()
                .map(|(reason, _)| (*reason, self.invalid[*reason as usize]))
                .collect(),
        }
    }

    /// What is counted is what grows with the number of objects.
    fn bytes(&self) -> usize {
        /// What an allocator adds to a short string, nearly.
        const OVERHEAD: usize = 16;
        // A place and a mark each, and one in eight left free.
        let index = self.index.capacity() * 8 / 7 * (size_of::<(u32, Id)>() + 1);
        let names = self.name_bytes + self.nodes.len() * OVERHEAD;
        self.nodes.bytes() + self.edges.bytes() + index + names
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 0
    }
}
