//! Owners that are deleted with `propagationPolicy: Orphan`, and the dependents to release.

use super::Graph;
use crate::{identity::Identity, metadata::ReferencePositions, orphaned_owners::OrphanedOwners, uid::Uid};

/// The work needed to orphan the dependents of an owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Orphaning {
    /// The owner, which is being deleted and waits for this.
    pub owner: Identity,
    /// Its dependents, with their references to it: positions and UIDs.
    pub dependents: Vec<(Identity, ReferencePositions)>,
}

impl Graph {
    /// Returns the work needed to orphan the dependents of this owner, if it still waits for that.
    pub fn orphaning(&self, uid: Uid) -> Option<Orphaning> {
        let id = self.find(uid).filter(|id| self.nodes[*id].is_orphaning())?;
        let mut dependents: Vec<_> = self.dependents(id).collect();
        dependents.sort_unstable();
        dependents.dedup();
        let owner = self.identity(id);
        let dependents = dependents.into_iter().map(|dependent| {
            let references = self.partial_object(dependent).metadata.references_to(&owner.uid);
            (self.identity(dependent), references)
        });
        let dependents = dependents.collect();
        Some(Orphaning { owner, dependents })
    }

    /// Returns the owners whose dependents are orphaned when they are found.
    pub fn orphaned_owners(&self) -> &OrphanedOwners {
        &self.orphaned_owners
    }

    /// Returns the owners whose dependents are orphaned when they are found, to change them.
    pub fn orphaned_owners_mut(&mut self) -> &mut OrphanedOwners {
        &mut self.orphaned_owners
    }

    /// Returns those of the orphaned owners that watches report without a deletion. Either etcd was
    /// restored from a backup, or the watches lag.
    pub fn returned_owners(&self) -> Vec<Identity> {
        let nodes = self
            .orphaned_owners
            .iter()
            .filter_map(|owner| self.find(self.uids.find(owner)?));
        let nodes = nodes.filter(|id| self.nodes[*id].is_observed() && !self.nodes[*id].is_deleting());
        nodes.map(|id| self.identity(id)).collect()
    }

    /// Returns whether the object is being deleted and waits until its dependents are orphaned.
    pub fn is_orphaning(&self, uid: Uid) -> bool {
        self.find(uid).is_some_and(|id| self.nodes[id].is_orphaning())
    }
}
