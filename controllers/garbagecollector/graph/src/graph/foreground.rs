//! The wait of owners that are deleted in the foreground for single dependents.

use super::{FollowUps, Graph, Id};
use crate::uid::Uid;

impl Graph {
    /// Returns whether an owner waits for this object to be deleted.
    pub fn is_awaited(&self, uid: Uid) -> bool {
        let edges = self.find(uid).into_iter().flat_map(|id| self.references_of(id));
        edges.into_iter().any(|edge| self.is_awaited_by(edge))
    }

    /// Ends the wait of all owners for this object, because it cannot be read. They wait again if a
    /// watch reports it.
    pub fn stop_waiting_for(&mut self, uid: Uid, follow_ups: &mut FollowUps) {
        let Some(id) = self.find(uid) else { return };
        let awaited = self.references_of(id).filter(|edge| self.is_awaited_by(*edge));
        for edge in awaited.collect::<Vec<_>>() {
            self.edges[edge].blocks = false;
            let owner = self.edges[edge].owner;
            self.nodes[owner].blocking -= 1;
            self.settle(owner, follow_ups);
        }
    }

    fn is_awaited_by(&self, edge: Id) -> bool {
        let edge = &self.edges[edge];
        edge.is_blocking() && self.nodes[edge.owner].is_waiting_for_dependents()
    }
}
