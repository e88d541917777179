//! Lost nodes: objects that a watch has reported, whose resource can no longer be read.
//!
//! Their number may be that of all objects of a resource, so they are not read one by one. A lost
//! node is read when a decision depends on it, and at the end of the next list that lacks it.

use super::{Flags, FollowUps, Graph, Id, Monitor, Node};
use crate::absent_owner_cache::group_of;

impl Graph {
    /// Makes all nodes of a resource virtual, because the resource can no longer be read. Queues
    /// attempts only for those on which a decision depends now.
    pub fn invalidate_monitor(&mut self, monitor: Monitor, follow_ups: &mut FollowUps) {
        let lost = self.nodes_of(monitor, |_| true);
        let mut waiting = Vec::new();
        for id in &lost {
            if self.nodes[*id].is_waiting_for_dependents() {
                waiting.push(*id);
            }
            self.unobserve(*id);
            self.set_lost(*id, true);
            self.nodes[*id].monitor = monitor;
        }
        for id in lost {
            // The node may have been removed together with its last dependent.
            if self.nodes.has(id) {
                if self.is_due(id) || waiting.binary_search(&id).is_ok() {
                    follow_ups.attempt.push(self.nodes[id].uid);
                }
                self.settle(id, follow_ups);
            }
        }
    }

    /// Does the same as [`Graph::invalidate_monitor`], and queues attempts for all lost nodes of
    /// the same kind that others refer to, because the kind is no longer served: no list will show
    /// which of them exist, so they must be reported as unknown. Returns their number.
    pub fn doubt_owners(&mut self, monitor: Monitor, follow_ups: &mut FollowUps) -> usize {
        let Some(kind) = self.watched(monitor).map(|watched| watched.kind) else {
            return 0;
        };
        self.invalidate_monitor(monitor, follow_ups);
        // Another version of the kind may have reported them before.
        let is_owner = |node: &Node| node.flags.has(Flags::LOST) && node.dependents.is_some();
        let owners = self.nodes.iter().filter(|(_, node)| is_owner(node));
        let owners = owners.filter(|(_, node)| self.is_same_kind(node.kind, kind));
        let owners: Vec<_> = owners.map(|(id, _)| id).collect();
        for id in &owners {
            self.set_lost(*id, false);
            follow_ups.attempt.push(self.nodes[*id].uid);
        }
        owners.len()
    }

    /// Processes the lost nodes of a resource that was just listed: the list lacks them. That
    /// proves them absent if the list is a proof, and if it comes from the monitor that has
    /// reported them.
    pub(super) fn find_lost(&mut self, monitor: Monitor, kind: u32, is_proof: bool, follow_ups: &mut FollowUps) {
        let numbers = (0_u32..).zip(&self.tallies);
        let listed: Vec<_> = numbers
            .filter(|(number, tally)| tally.lost > 0 && self.is_same_kind(*number, kind))
            .map(|(number, _)| number)
            .collect();
        if listed.is_empty() {
            return;
        }
        let nodes = self.nodes.iter();
        let missing = nodes.filter(|(_, node)| node.flags.has(Flags::LOST) && listed.contains(&node.kind));
        for id in missing.map(|(id, _)| id).collect::<Vec<_>>() {
            // The node may have been removed together with its last dependent.
            if !self.nodes.has(id) {
                continue;
            }
            if is_proof && self.nodes[id].monitor == monitor {
                self.remove(id, follow_ups);
            } else {
                self.set_lost(id, false);
                follow_ups.attempt.push(self.nodes[id].uid);
            }
        }
    }

    /// Forgets which monitor has reported its lost nodes, because its number may be used again.
    pub(super) fn release_lost(&mut self, monitor: Monitor) {
        let nodes = self.nodes.iter();
        let lost = nodes.filter(|(_, node)| node.flags.has(Flags::LOST) && node.monitor == monitor);
        for id in lost.map(|(id, _)| id).collect::<Vec<_>>() {
            self.nodes[id].monitor = Monitor(u16::MAX);
        }
    }

    /// Returns whether both are versions of one kind.
    fn is_same_kind(&self, a: u32, b: u32) -> bool {
        match (self.kinds.get(a), self.kinds.get(b)) {
            (Some(a), Some(b)) => a.kind == b.kind && group_of(&a.api_version) == group_of(&b.api_version),
            _ => false,
        }
    }

    /// Returns whether the object may have to be deleted or released now, by what is known of its
    /// owners.
    pub(super) fn is_due(&self, id: Id) -> bool {
        let mut owners = self.references_of(id).map(|edge| self.edges[edge].owner);
        owners.any(|owner| self.nodes[owner].is_waiting_for_dependents()) || self.is_doubtful(id)
    }

    pub(super) fn is_lost(&self, id: Id) -> bool {
        self.nodes[id].flags.has(Flags::LOST)
    }

    /// Records whether a virtual node is lost.
    pub(super) fn set_lost(&mut self, id: Id, on: bool) {
        let node = &mut self.nodes[id];
        if node.flags.has(Flags::LOST) != on {
            node.flags.set(Flags::LOST, on);
            let tally = &mut self.tallies[node.kind as usize];
            tally.lost = if on { tally.lost + 1 } else { tally.lost - 1 };
        }
    }
}
