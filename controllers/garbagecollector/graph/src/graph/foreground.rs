//! Owners that are deleted in the foreground, and the dependents that only a list shows.
//!
//! The finalizer `foregroundDeletion` is removed after a scan for dependents that no watch has
//! reported yet. Such dependents become virtual nodes with references, so the owner waits for them
//! as for all others.

use std::collections::BTreeSet;

use super::{FollowUps, Graph, Id, Kind, attempt::ScanRequest, change::number};
use crate::{
    identity::Identity,
    metadata::{PartialObject, Reference},
    uid::Uid,
};

/// What is known about an owner since it began to wait for its dependents.
#[derive(Debug)]
pub(super) struct WaitingOwner {
    /// When it began to wait, as a moment: see [`Graph::next_moment`].
    since: u64,
    /// The kinds of its dependents since then.
    kinds: BTreeSet<u32>,
}

/// What the graph knows about a dependent that a list contains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ListedDependent {
    /// The graph accounts for it: the owner waits for it, or a newer version no longer blocks the
    /// owner.
    Known,
    /// A watch has reported only an older version, which does not block the owner.
    Outdated,
}

impl Graph {
    /// Returns whether an owner waits for this object to be deleted.
    pub fn is_awaited(&self, uid: Uid) -> bool {
        let edges = self.find(uid).into_iter().flat_map(|id| self.references_of(id));
        edges.into_iter().any(|edge| self.is_awaited_by(edge))
    }

    /// Ends the wait of all owners for this object, because it cannot be read. They wait again if a
    /// watch or a list shows it.
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

    /// Returns a number that is greater than those that it has returned before. It orders the
    /// beginning of lists and of waiting.
    pub fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// Records that the node waits for its dependents.
    pub(super) fn begin_waiting(&mut self, id: Id) {
        if self.waiting.contains_key(&id) {
            return;
        }
        let since = self.next_moment();
        let kinds: BTreeSet<_> = self
            .dependents(id)
            .map(|dependent| self.nodes[dependent].kind)
            .collect();
        for kind in &kinds {
            self.kinds.acquire(*kind);
        }
        self.waiting.insert(id, WaitingOwner { since, kinds });
    }

    /// Records that the node does not wait for dependents.
    pub(super) fn end_waiting(&mut self, id: Id) {
        let ended = self.waiting.remove(&id);
        for kind in ended.into_iter().flat_map(|waiting| waiting.kinds) {
            self.kinds.release(kind);
        }
    }

    /// Remembers the kind of a new dependent of a waiting owner.
    pub(super) fn remember_kind(&mut self, owner: Id, kind: u32) {
        if let Some(waiting) = self.waiting.get_mut(&owner)
            && waiting.kinds.insert(kind)
        {
            self.kinds.acquire(kind);
        }
    }

    /// Returns the scan that must precede the removal of the finalizer.
    pub(super) fn scan_request(&self, id: Id, owner: Identity) -> ScanRequest {
        let waiting = self.waiting.get(&id);
        let kinds = waiting.into_iter().flat_map(|waiting| &waiting.kinds);
        let kinds = kinds.filter_map(|kind| self.kinds.get(*kind));
        ScanRequest {
            owner,
            since: waiting.map(|waiting| waiting.since),
            kinds: kinds
                .map(|kind| {
                    let Kind { api_version, kind } = &**kind;
                    (api_version.clone(), kind.clone())
                })
                .collect(),
        }
    }

    /// Returns the UIDs of the owners that wait for a listed object although the graph does not
    /// know that. `owner` is the UID of an owner that waits in any case.
    pub fn unknown_blocked_owners(&self, seen: &PartialObject, owner: &str) -> Vec<Box<str>> {
        let meta = &seen.metadata;
        let references = meta.owner_references.iter().filter(|reference| reference.blocks);
        let is_unknown = |reference: &&Reference| {
            let id = self.uids.find(&reference.uid).and_then(|uid| self.find(uid));
            let waits = *reference.uid == *owner || id.is_some_and(|id| self.waiting.contains_key(&id));
            waits && !self.is_blocked(&meta.uid, &reference.uid)
        };
        references
            .filter(is_unknown)
            .map(|reference| reference.uid.clone())
            .collect()
    }

    /// Returns whether the graph knows that an object blocks the deletion of an owner.
    fn is_blocked(&self, dependent: &str, owner: &str) -> bool {
        let id = |uid| self.uids.find(uid).and_then(|uid| self.find(uid));
        let (Some(dependent), Some(owner)) = (id(dependent), id(owner)) else {
            return false;
        };
        self.references_of(dependent)
            .any(|edge| self.edges[edge].owner == owner && self.edges[edge].blocks)
    }

    /// Adds a dependent that a list contains and no watch has reported. An attempt then reads it.
    pub fn add_listed(
        &mut self,
        (api_version, kind): (&str, &str),
        seen: &PartialObject,
        owner: &str,
        follow_ups: &mut FollowUps,
    ) -> ListedDependent {
        let meta = &seen.metadata;
        if self.is_blocked(&meta.uid, owner) {
            return ListedDependent::Known;
        }
        let uid = self.uids.intern(&meta.uid);
        let id = if let Some(id) = self.find(uid) {
            let node = &self.nodes[id];
            if node.is_observed() {
                let is_newer = number(&meta.resource_version).is_some_and(|listed| listed <= node.version);
                return if is_newer {
                    ListedDependent::Known
                } else {
                    ListedDependent::Outdated
                };
            }
            if self.is_absent(&self.identity(id)) {
                return ListedDependent::Known;
            }
            id
        } else {
            let kind = self.kind(api_version, kind);
            let namespace = self.namespace(meta.namespace.as_deref());
            self.insert(uid, kind, namespace, &meta.name)
        };
        self.set_owners(id, &meta.owner_references, follow_ups);
        follow_ups.attempt.push(uid);
        ListedDependent::Known
    }
}
