//! Edges: references from dependents to owners, and whether they are valid.

use std::sync::Arc;

use super::{Coordinates, Edge, FollowUps, Graph, Id, InvalidReason, InvalidReference, NONE};
use crate::{identity::Identity, metadata::Reference};

impl Graph {
    /// Returns the references of a node to its owners, in their order in the object.
    pub(super) fn references_of(&self, id: Id) -> impl Iterator<Item = Id> {
        let mut next = self.nodes[id].owners;
        std::iter::from_fn(move || {
            let edge = next?;
            next = self.edges[edge].next_owner;
            Some(edge)
        })
    }

    /// Returns the references of other nodes to a node.
    pub(super) fn references_to(&self, id: Id) -> impl Iterator<Item = Id> {
        let mut next = self.nodes[id].dependents;
        std::iter::from_fn(move || {
            let edge = next?;
            next = self.edges[edge].next_dependent;
            Some(edge)
        })
    }

    /// Returns the dependents of a node, once for each reference.
    pub(super) fn dependents(&self, id: Id) -> impl Iterator<Item = Id> {
        self.references_to(id).map(|edge| self.edges[edge].dependent)
    }

    /// Replaces the references of a node. Returns whether they have changed.
    pub(super) fn set_owners(&mut self, id: Id, references: &[Reference], follow_ups: &mut FollowUps) -> bool {
        if self.refers_as(id, references) {
            return false;
        }
        let former = self.unlink(id);
        let mut last = None;
        for reference in references {
            let edge = self.link(id, reference, follow_ups);
            match last {
                None => self.nodes[id].owners = Some(edge),
                Some(last) => self.edges[last].next_owner = Some(edge),
            }
            last = Some(edge);
        }
        for owner in former {
            // If the node named an owner twice, the first iteration may have removed the owner.
            if self.nodes.has(owner) {
                self.settle(owner, follow_ups);
            }
        }
        true
    }

    /// Returns whether the node already has exactly these references.
    fn refers_as(&self, id: Id, references: &[Reference]) -> bool {
        let mut next = self.nodes[id].owners;
        for reference in references {
            let Some(edge) = next else { return false };
            let Edge { owner, blocks, .. } = self.edges[edge];
            let is_it = self.uids.find(&reference.uid) == Some(self.nodes[owner].uid)
                && blocks == reference.blocks
                && self.says_reference(edge, reference);
            if !is_it {
                return false;
            }
            next = self.edges[edge].next_owner;
        }
        next.is_none()
    }

    /// Removes all references of a node. Returns their owners, each once.
    fn unlink(&mut self, id: Id) -> Vec<Id> {
        let mut former = Vec::new();
        let mut next = self.nodes[id].owners.take();
        while let Some(edge) = next {
            let Some(edge) = self.edges.remove(edge) else { break };
            match edge.previous_dependent {
                None => self.nodes[edge.owner].dependents = edge.next_dependent,
                Some(previous) => self.edges[previous].next_dependent = edge.next_dependent,
            }
            if let Some(following) = edge.next_dependent {
                self.edges[following].previous_dependent = edge.previous_dependent;
            }
            let owner = &mut self.nodes[edge.owner];
            owner.dependent_count -= 1;
            owner.blocking -= u32::from(edge.is_blocking());
            self.release_coordinates(edge.coordinates);
            if let Some(invalid) = edge.invalid {
                self.invalid[invalid as usize] -= 1;
            }
            if !former.contains(&edge.owner) {
                former.push(edge.owner);
            }
            next = edge.next_owner;
        }
        former
    }

    /// Adds one reference. If no node has the owner's UID, inserts a virtual node, which an attempt
    /// then reads from the apiserver.
    fn link(&mut self, id: Id, reference: &Reference, follow_ups: &mut FollowUps) -> Id {
        let uid = self.uids.intern(&reference.uid);
        let known = self.find(uid);
        let owner = known.unwrap_or_else(|| {
            let kind = self.kind(&reference.api_version, &reference.kind);
            let namespace = self.nodes[id].namespace;
            if namespace != NONE {
                self.namespaces.acquire(namespace);
            }
            follow_ups.attempt.push(uid);
            self.insert(uid, kind, namespace, &reference.name)
        });
        let coordinates = self.coordinates_of(owner, reference);
        let next_dependent = self.nodes[owner].dependents;
        let edge = self.edges.insert(Edge {
            owner,
            dependent: id,
            next_owner: None,
            next_dependent,
            previous_dependent: None,
            coordinates,
            blocks: reference.blocks,
            invalid: None,
        });
        if let Some(following) = next_dependent {
            self.edges[following].previous_dependent = Some(edge);
        }
        let node = &mut self.nodes[owner];
        node.dependents = Some(edge);
        node.dependent_count += 1;
        node.blocking += u32::from(reference.blocks);
        if known.is_some() {
            self.check_reference(edge, follow_ups);
            let namespace = self.namespace_of(id);
            let is_due =
                self.nodes[owner].is_waiting_for_dependents() || self.absent.contains(uid, reference, namespace);
            let is_known = self.nodes[owner].is_observed() || self.is_lost(owner) && coordinates == NONE;
            if is_due {
                follow_ups.attempt.push(self.nodes[id].uid);
            } else if !is_known {
                // The owner may have been read with the coordinates of other references. This one
                // may give different coordinates.
                follow_ups.attempt.push(uid);
            }
        }
        edge
    }

    /// Returns the number of the coordinates that a reference gives, or [`NONE`] if they are the
    /// owner's own.
    fn coordinates_of(&mut self, owner: Id, reference: &Reference) -> u32 {
        let node = &self.nodes[owner];
        if *node.name == *reference.name && self.is_kind(node.kind, &reference.api_version, &reference.kind) {
            return NONE;
        }
        let kind = self.kind(&reference.api_version, &reference.kind);
        self.take_coordinates(kind, &reference.name)
    }

    /// Interns coordinates, and takes over the caller's use of `kind`, which is counted.
    fn take_coordinates(&mut self, kind: u32, name: &str) -> u32 {
        let coordinates = Coordinates {
            kind,
            name: name.into(),
        };
        let before = self.coordinates.len();
        let number = self.coordinates.intern(&coordinates, |known| Arc::new(known.clone()));
        if self.coordinates.len() == before {
            self.kinds.release(kind);
        }
        number
    }

    fn release_coordinates(&mut self, number: u32) {
        let Some(known) = self.coordinates.get(number) else {
            return;
        };
        let (kind, before) = (known.kind, self.coordinates.len());
        self.coordinates.release(number);
        if self.coordinates.len() < before {
            self.kinds.release(kind);
        }
    }

    /// Returns the coordinates that an edge gives for its owner: the number of a kind, and a name.
    pub(super) fn reference_coordinates(&self, edge: Id) -> (u32, &str) {
        let Edge { owner, coordinates, .. } = self.edges[edge];
        match self.coordinates.get(coordinates) {
            Some(said) => (said.kind, &said.name),
            None => (self.nodes[owner].kind, &self.nodes[owner].name),
        }
    }

    fn says_reference(&self, edge: Id, reference: &Reference) -> bool {
        let (kind, name) = self.reference_coordinates(edge);
        *name == *reference.name && self.is_kind(kind, &reference.api_version, &reference.kind)
    }

    /// Returns whether the reference gives the owner's kind, in any version, and name. Namespaces
    /// are not compared.
    pub(super) fn names_owner(&self, edge: Id, owner: &Identity) -> bool {
        let (kind, name) = self.reference_coordinates(edge);
        *name == *owner.name && self.is_kind_of_group(kind, &owner.api_version, &owner.kind)
    }

    /// Corrects the coordinates of a node to those that a watch has reported. The coordinates that
    /// references give stay as they are.
    pub(super) fn rename(&mut self, id: Id, kind: u32, namespace: Option<&str>, name: &str) {
        let mut next = self.nodes[id].dependents;
        while let Some(edge) = next {
            let (said_kind, said_name) = self.reference_coordinates(edge);
            let agrees = said_kind == kind && said_name == name;
            let said_name: Box<str> = said_name.into();
            let before = self.edges[edge].coordinates;
            if agrees {
                self.edges[edge].coordinates = NONE;
                self.release_coordinates(before);
            } else if before == NONE {
                self.kinds.acquire(said_kind);
                self.edges[edge].coordinates = self.take_coordinates(said_kind, &said_name);
            }
            next = self.edges[edge].next_dependent;
        }
        let namespace = self.namespace(namespace);
        self.kinds.acquire(kind);
        let node = &mut self.nodes[id];
        let observed = node.is_observed();
        let former_kind = std::mem::replace(&mut node.kind, kind);
        let former_namespace = std::mem::replace(&mut node.namespace, namespace);
        self.name_bytes += name.len();
        self.name_bytes -= node.name.len();
        node.name = name.into();
        for (kind, by) in [(former_kind, u32::MAX), (kind, 1)] {
            let tally = &mut self.tallies[kind as usize];
            let count = if observed {
                &mut tally.observed
            } else {
                &mut tally.virtual_
            };
            *count = count.wrapping_add(by);
        }
        self.kinds.release(former_kind);
        self.namespaces.release(former_namespace);
    }

    /// Checks every reference to a node that a watch has just reported.
    pub(super) fn check_references_to(&mut self, id: Id, follow_ups: &mut FollowUps) {
        let mut next = self.nodes[id].dependents;
        while let Some(edge) = next {
            next = self.edges[edge].next_dependent;
            self.check_reference(edge, follow_ups);
        }
    }

    /// Checks one reference. Queues its dependent if the reference may be invalid, and reports the
    /// reference if it is.
    fn check_reference(&mut self, edge: Id, follow_ups: &mut FollowUps) {
        let Edge { owner, dependent, .. } = self.edges[edge];
        let invalid = self.invalidity(edge);
        let (owner_node, dependent_node) = (&self.nodes[owner], &self.nodes[dependent]);
        let is_observed = owner_node.is_observed();
        // A virtual owner that was created from the reference of a cluster-scoped object has no
        // namespace, but the object itself may be namespaced.
        let is_vague = !is_observed && owner_node.namespace == NONE && dependent_node.namespace != NONE;
        if invalid.is_some() || is_vague {
            follow_ups.attempt.push(dependent_node.uid);
        }
        let certain = invalid.filter(|_| is_observed);
        let was_blocking = self.edges[edge].is_blocking();
        let before = std::mem::replace(&mut self.edges[edge].invalid, certain);
        self.recount_blocking(edge, was_blocking, follow_ups);
        if let Some(before) = before {
            self.invalid[before as usize] -= 1;
        }
        if let Some(reason) = certain {
            self.invalid[reason as usize] += 1;
            if before != certain {
                follow_ups.invalid.push(InvalidReference {
                    dependent: self.identity(dependent),
                    owner: self.referenced_owner(edge),
                    reason,
                });
            }
        }
    }

    /// Forgets which references to a node that is no longer observed cross scopes, because only an
    /// observed object shows its scope.
    pub(super) fn forget_invalid_scopes(&mut self, id: Id) {
        let mut next = self.nodes[id].dependents;
        while let Some(edge) = next {
            next = self.edges[edge].next_dependent;
            if self.edges[edge].invalid == Some(InvalidReason::Scope) {
                self.edges[edge].invalid = None;
                self.invalid[InvalidReason::Scope as usize] -= 1;
                self.nodes[id].blocking += u32::from(self.edges[edge].is_blocking());
            }
        }
    }

    /// Counts a reference again after its validity has changed. Queues an owner that no longer
    /// waits for any dependent.
    fn recount_blocking(&mut self, edge: Id, was_blocking: bool, follow_ups: &mut FollowUps) {
        let is_blocking = self.edges[edge].is_blocking();
        let owner = &mut self.nodes[self.edges[edge].owner];
        owner.blocking = owner.blocking + u32::from(is_blocking) - u32::from(was_blocking);
        if was_blocking && owner.blocking == 0 && owner.is_waiting_for_dependents() {
            follow_ups.attempt.push(owner.uid);
        }
    }

    /// Returns why a reference does not denote its owner, as far as the owner is known.
    pub(super) fn invalidity(&self, edge: Id) -> Option<InvalidReason> {
        let Edge {
            owner,
            dependent,
            coordinates,
            ..
        } = self.edges[edge];
        let (owner, dependent) = (&self.nodes[owner], &self.nodes[dependent]);
        if !Self::may_refer(owner.namespace, dependent.namespace) {
            return Some(if dependent.namespace == NONE {
                InvalidReason::Scope
            } else {
                InvalidReason::Namespace
            });
        }
        (coordinates != NONE).then_some(InvalidReason::Coordinates)
    }
}
