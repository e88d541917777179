//! The steps of an attempt: what to read next, and the decision once everything is known.

use super::{
    Graph, Id, InvalidReason, NONE,
    attempt::{Attempt, AttemptStep, Intent, Known, NoopReason, ReadRequest, ReadResult},
};
use crate::{
    identity::Identity,
    metadata::{PartialObject, Reference},
    verdict::{DecisionInput, DeletionStage, OwnerState, Verdict, decide},
};

impl Graph {
    /// Returns the next step of an attempt.
    pub fn step(&mut self, attempt: &Attempt) -> AttemptStep {
        let Some(id) = self.find(attempt.uid) else {
            return AttemptStep::Noop(NoopReason::Gone);
        };
        let (item, seen) = match &attempt.live {
            Some((identity, seen)) => (identity.clone(), (**seen).clone()),
            None if self.nodes[id].is_observed() => (self.identity(id), self.partial_object(id)),
            None => return self.guess(id, attempt),
        };
        let mut owners = Vec::with_capacity(seen.metadata.owner_references.len());
        if !seen.metadata.deleting {
            for reference in &seen.metadata.owner_references {
                let owner = Identity::of_owner(reference, item.namespace.as_deref());
                match self.owner_state(reference, owner.clone(), attempt) {
                    Known::OwnerState(owner_state) => owners.push((owner, owner_state)),
                    Known::Read(identity) => {
                        return AttemptStep::Read(ReadRequest {
                            identity,
                            is_item: false,
                        });
                    }
                }
            }
        }
        let case = self.decision_input(id, &seen, &owners);
        self.conclude(id, attempt, item, &seen, owners, &decide(&case))
    }

    fn conclude(
        &self,
        id: Id,
        attempt: &Attempt,
        item: Identity,
        seen: &PartialObject,
        owners: Vec<(Identity, OwnerState)>,
        verdict: &Verdict,
    ) -> AttemptStep {
        let references = &seen.metadata.owner_references;
        let place = |place: usize| (place, references[place].uid.clone());
        match verdict {
            Verdict::Keep(_) if !self.nodes[id].is_observed() => AttemptStep::Noop(NoopReason::Unobserved),
            Verdict::Keep(reason) => AttemptStep::Noop(NoopReason::Kept(*reason)),
            Verdict::BreakCycle => self.break_cycle(id, attempt),
            Verdict::RemoveFinalizer => AttemptStep::Apply(Intent::RemoveFinalizer { item }),
            Verdict::RemoveReferences(places) => AttemptStep::Apply(Intent::RemoveReferences {
                item,
                references: places.iter().copied().map(place).collect(),
                owners,
            }),
            // The graph does not store a resourceVersion that is not a number, so read the object.
            Verdict::Delete { .. } if seen.metadata.resource_version.is_empty() => AttemptStep::Read(ReadRequest {
                identity: item,
                is_item: true,
            }),
            Verdict::Delete { policy, unblock } => {
                let blocking = (0..references.len()).filter(|place| *unblock && references[*place].blocks);
                AttemptStep::Apply(Intent::Delete {
                    item,
                    version: seen.metadata.resource_version.clone(),
                    policy: *policy,
                    unblock: blocking.map(place).collect(),
                    owners,
                })
            }
        }
    }

    /// Collects the facts about an object that the decision takes into account.
    pub(super) fn decision_input(
        &self,
        id: Id,
        seen: &PartialObject,
        owners: &[(Identity, OwnerState)],
    ) -> DecisionInput {
        let node = &self.nodes[id];
        let meta = &seen.metadata;
        let waits = owners
            .iter()
            .any(|(_, owner_state)| *owner_state == OwnerState::WaitingForDependents);
        DecisionInput {
            stage: meta.stage(),
            orphan: meta.finalizers.orphan,
            foreground: meta.finalizers.foreground,
            dependents: node.dependent_count,
            blocking: node.blocking,
            cycle: match meta.stage() {
                DeletionStage::WaitingForDependents => self.waiting_cycle(id).is_some(),
                _ => waits && self.dependents(id).any(|id| self.nodes[id].is_waiting_for_dependents()),
            },
            owners: owners.iter().map(|(_, owner_state)| *owner_state).collect(),
        }
    }

    /// Returns the state of an owner that the object of this attempt refers to, or the request that
    /// is needed.
    fn owner_state(&mut self, reference: &Reference, owner: Identity, attempt: &Attempt) -> Known {
        let Some(uid) = self.uid(&reference.uid) else {
            // An object that was just read may refer to an owner that is not in the graph. Only the
            // answers of this attempt count then.
            return match attempt.fact(&owner) {
                Some(ReadResult::Absent) => Known::OwnerState(self.state_of_absent(&owner)),
                _ => attempt.recorded_owner_state(owner),
            };
        };
        if self.absent.lookup(uid, reference, owner.namespace.as_deref()) {
            let is_current = self.is_proof_current(reference) || attempt.fact(&owner) == Some(&ReadResult::Absent);
            return if is_current {
                Known::OwnerState(self.state_of_absent(&owner))
            } else {
                attempt.recorded_owner_state(owner)
            };
        }
        match self
            .find(uid)
            .filter(|id| self.matches_reference(*id, reference, &owner))
        {
            Some(id) if !self.nodes[id].is_waiting_for_dependents() => Known::OwnerState(OwnerState::Solid),
            // Before a dependent is deleted for a waiting owner, read the owner again: its deletion
            // may have been changed to `propagationPolicy: Orphan`.
            _ => attempt.recorded_owner_state(owner),
        }
    }

    /// Returns the state of an owner that is proven absent.
    fn state_of_absent(&self, owner: &Identity) -> OwnerState {
        if self.orphaned_owners.contains(&owner.uid) {
            OwnerState::Orphaned
        } else {
            OwnerState::Dangling
        }
    }

    /// Returns whether an observed node is the owner that a reference denotes.
    pub(super) fn matches_reference(&self, id: Id, reference: &Reference, owner: &Identity) -> bool {
        let node = &self.nodes[id];
        node.is_observed()
            && *node.name == *reference.name
            && self.is_kind(node.kind, &reference.api_version, &reference.kind)
            && (node.namespace == NONE || self.is_namespace(node.namespace, owner.namespace.as_deref()))
    }

    /// Returns the next step for a virtual node: reads the objects that it could be, by the
    /// references to it.
    fn guess(&self, id: Id, attempt: &Attempt) -> AttemptStep {
        let mut is_unknown = false;
        // A node that was watched before and has owners has known coordinates, whatever its
        // dependents say.
        let is_itself = self.nodes[id].dependents.is_none() || self.nodes[id].owners.is_some();
        let own = is_itself.then(|| self.identity(id));
        let guesses = self.references_to(id).map(|edge| self.referenced_owner(edge));
        for identity in own.into_iter().chain(guesses) {
            if self.is_absent(&identity) {
                continue;
            }
            match attempt.fact(&identity) {
                None => {
                    return AttemptStep::Read(ReadRequest {
                        identity,
                        is_item: true,
                    });
                }
                // Misplaced: a cluster-scoped dependent gives no namespace from which its
                // namespaced owner could be read.
                Some(ReadResult::Absent | ReadResult::Found(_) | ReadResult::Misplaced) => {}
                Some(ReadResult::Unknown) => is_unknown = true,
            }
        }
        AttemptStep::Noop(if is_unknown {
            NoopReason::Unknown
        } else {
            NoopReason::Absent
        })
    }

    pub(super) fn is_absent(&self, identity: &Identity) -> bool {
        let reference = Reference {
            api_version: identity.api_version.clone(),
            kind: identity.kind.clone(),
            name: identity.name.clone(),
            uid: identity.uid.clone(),
            blocks: false,
        };
        let uid = self.uids.find(&identity.uid);
        uid.is_some_and(|uid| self.absent.contains(uid, &reference, identity.namespace.as_deref()))
    }

    /// Returns the state of the owner of an edge as far as it is known without a request; `None` if
    /// a request is needed.
    pub(super) fn known_owner_state(&self, edge: Id) -> Option<OwnerState> {
        let owner = self.referenced_owner(edge);
        if self.is_absent(&owner) {
            return Some(self.state_of_absent(&owner));
        }
        let node = &self.nodes[self.edges[edge].owner];
        match self.invalidity(edge) {
            Some(InvalidReason::Scope) if node.is_observed() => Some(OwnerState::Misplaced),
            None if node.is_observed() && node.is_waiting_for_dependents() => Some(OwnerState::WaitingForDependents),
            None if node.is_observed() => Some(OwnerState::Solid),
            _ => None,
        }
    }
}
