//! An attempt to process one object: the requests that are needed to decide, and the action that
//! follows.
//!
//! The caller records the apiserver's answers with [`Attempt::record`] and calls [`Graph::step`]
//! again. So tests cover the whole rule, with every possible answer, without a server.

use super::{Edge, Graph, Id, InvalidReason, NONE};
use crate::{
    identity::Identity,
    metadata::{PartialObject, Reference, ReferencePositions},
    uid::Uid,
    verdict::{DecisionInput, KeepReason, OwnerState, PropagationPolicy, Verdict, decide},
};

/// The state of an attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    uid: Uid,
    /// The object as just read from the apiserver. It takes precedence over what a watch has
    /// reported.
    live: Option<(Identity, Box<PartialObject>)>,
    /// The answers about owners, by the identity that the dependent's reference gives.
    facts: Vec<(Identity, ReadResult)>,
}

/// The result of reading an object from the apiserver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadResult {
    /// The object exists with that UID.
    Found(Box<PartialObject>),
    /// The object does not exist, or another one has its name. The caller has recorded that in the
    /// graph.
    Absent,
    /// It is unknown whether the object exists: its kind is not served, it may not be read, or the
    /// request failed.
    Unknown,
    /// The kind is namespaced and the dependent that refers to it is cluster-scoped.
    Misplaced,
}

/// A request to read one object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReadRequest {
    /// The object to read.
    pub identity: Identity,
    /// Whether this is the object of the attempt itself, and not one of its owners.
    pub is_item: bool,
}

/// The next step of an attempt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AttemptStep {
    /// Read this object and record the result.
    Read(ReadRequest),
    /// Carry out this intent; the attempt is over.
    Apply(Intent),
    /// Do nothing; the attempt is over.
    Noop(NoopReason),
}

/// Why an attempt ends without an action.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoopReason {
    /// The node is no longer in the graph.
    Gone,
    /// Every object that the virtual node could be is proven absent.
    Absent,
    /// The node is virtual, and some of the objects that it could be cannot be read now.
    Unknown,
    /// The object exists, but no watch has reported it yet. Process it again, because it may be
    /// deleted before any watch reports it.
    Unobserved,
    /// The object is kept, for this reason.
    Kept(KeepReason),
}

/// A change to the cluster that an attempt ends with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Intent {
    /// Delete the object, in this version only.
    Delete {
        /// The object to delete.
        item: Identity,
        /// Its resourceVersion.
        version: Box<str>,
        /// What happens to its dependents.
        policy: PropagationPolicy,
        /// The references in which to unset `blockOwnerDeletion` first: positions and UIDs.
        unblock: ReferencePositions,
        /// The reason: each owner and its state.
        owners: Vec<(Identity, OwnerState)>,
    },
    /// Remove references.
    RemoveReferences {
        /// The object to change.
        item: Identity,
        /// The references to remove: positions and UIDs.
        references: ReferencePositions,
        /// The reason: each owner and its state.
        owners: Vec<(Identity, OwnerState)>,
    },
    /// Remove the finalizer `foregroundDeletion`.
    RemoveFinalizer {
        /// The object to change.
        item: Identity,
    },
}

impl Intent {
    /// Returns the object to change.
    pub fn item(&self) -> &Identity {
        let (Self::Delete { item, .. } | Self::RemoveReferences { item, .. } | Self::RemoveFinalizer { item }) = self;
        item
    }
}

/// The work needed to orphan the dependents of an owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Orphaning {
    /// The owner, which is being deleted and waits for this.
    pub owner: Identity,
    /// Its dependents, with their references to it: positions and UIDs.
    pub dependents: Vec<(Identity, ReferencePositions)>,
}

impl Attempt {
    /// Creates an attempt to process the object with this UID.
    pub fn new(uid: Uid) -> Self {
        Self {
            uid,
            live: None,
            facts: Vec::new(),
        }
    }

    /// Records the answer to a request. If the object is absent, record that in the graph first.
    pub fn record(&mut self, request: ReadRequest, fact: ReadResult) {
        match fact {
            ReadResult::Found(seen) if request.is_item => {
                // The namespace of a virtual node was taken from its dependents. The object itself
                // gives the right one.
                let mut identity = request.identity;
                identity.namespace.clone_from(&seen.metadata.namespace);
                self.live = Some((identity, seen));
            }
            fact => {
                self.facts.retain(|(known, _)| *known != request.identity);
                self.facts.push((request.identity, fact));
            }
        }
    }

    /// Returns the state of an owner according to the answers in this attempt, or the request that
    /// is needed.
    fn stand(&self, owner: Identity) -> Known {
        let owner_state = match self.fact(&owner) {
            None => return Known::Read(owner),
            Some(ReadResult::Found(seen)) if seen.metadata.is_waiting_for_dependents() => {
                OwnerState::WaitingForDependents
            }
            Some(ReadResult::Found(_)) => OwnerState::Solid,
            Some(ReadResult::Misplaced) => OwnerState::Misplaced,
            // The graph was asked for a proof of absence first. If it has none although the read
            // found nothing, a watch has reported the owner since. Its state is then unknown, and
            // the next attempt decides.
            Some(ReadResult::Absent | ReadResult::Unknown) => OwnerState::Unknown,
        };
        Known::OwnerState(owner_state)
    }

    fn fact(&self, identity: &Identity) -> Option<&ReadResult> {
        let mut facts = self.facts.iter();
        facts.find(|(known, _)| known == identity).map(|(_, fact)| fact)
    }
}

/// The state of an owner, or the request that is needed to find it out.
enum Known {
    OwnerState(OwnerState),
    Read(Identity),
}

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
                match self.stand(reference, owner.clone(), attempt) {
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
        self.conclude(id, item, &seen, owners, &decide(&case))
    }

    fn conclude(
        &self,
        id: Id,
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
            cycle: waits
                && self
                    .dependents(id)
                    .any(|dependent| self.nodes[dependent].is_waiting_for_dependents()),
            owners: owners.iter().map(|(_, owner_state)| *owner_state).collect(),
        }
    }

    /// Returns the dependents of a node, once for each reference.
    pub(super) fn dependents(&self, id: Id) -> impl Iterator<Item = Id> {
        let mut next = self.nodes[id].dependents;
        std::iter::from_fn(move || {
            let Edge {
                dependent,
                next_dependent,
                ..
            } = self.edges[next?];
            next = next_dependent;
            Some(dependent)
        })
    }

    fn stand(&mut self, reference: &Reference, owner: Identity, attempt: &Attempt) -> Known {
        let Some(uid) = self.uid(&reference.uid) else {
            // An object that was just read may refer to an owner that is not in the graph. Only the
            // answers of this attempt count then.
            return match attempt.fact(&owner) {
                Some(ReadResult::Absent) => Known::OwnerState(OwnerState::Dangling),
                _ => attempt.stand(owner),
            };
        };
        if self.absent.lookup(uid, reference, owner.namespace.as_deref()) {
            return Known::OwnerState(OwnerState::Dangling);
        }
        match self
            .find(uid)
            .filter(|id| self.matches_reference(*id, reference, &owner))
        {
            Some(id) if !self.nodes[id].is_waiting_for_dependents() => Known::OwnerState(OwnerState::Solid),
            // Before a dependent is deleted for a waiting owner, read the owner again: its deletion
            // may have been changed to `propagationPolicy: Orphan`.
            _ => attempt.stand(owner),
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
        let mut next = self.nodes[id].dependents;
        // A node that was watched before and has owners has known coordinates, whatever its
        // dependents say.
        let is_itself = next.is_none() || self.nodes[id].owners.is_some();
        let own = is_itself.then(|| self.identity(id));
        let guesses = std::iter::from_fn(|| {
            let edge = next?;
            next = self.edges[edge].next_dependent;
            Some(self.referenced_owner(edge))
        });
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

    /// Returns the work needed to orphan the dependents of this owner, if it still waits for that.
    pub fn orphaning(&self, uid: Uid) -> Option<Orphaning> {
        let id = self.find(uid).filter(|id| self.nodes[*id].is_orphaning())?;
        let mut dependents: Vec<_> = self.dependents(id).collect();
        dependents.sort_unstable();
        dependents.dedup();
        let owner = self.identity(id);
        let references = |dependent: &Id| {
            let references = self.references(*dependent).into_iter().enumerate();
            let to_owner = references.filter(|(_, reference)| reference.uid == owner.uid);
            let places = to_owner.map(|(place, reference)| (place, reference.uid)).collect();
            (self.identity(*dependent), places)
        };
        let dependents = dependents.iter().map(references).collect();
        Some(Orphaning { owner, dependents })
    }

    /// Returns whether the object is known only from references.
    pub fn is_virtual(&self, uid: Uid) -> bool {
        self.find(uid).is_some_and(|id| !self.nodes[id].is_observed())
    }

    /// Returns whether the object is being deleted and waits until its dependents are orphaned.
    pub fn is_orphaning(&self, uid: Uid) -> bool {
        self.find(uid).is_some_and(|id| self.nodes[id].is_orphaning())
    }

    /// Returns the state of the owner of an edge as far as it is known without a request; `None` if
    /// a request is needed.
    pub(super) fn known_owner_state(&self, edge: Id) -> Option<OwnerState> {
        let owner = self.referenced_owner(edge);
        if self.is_absent(&owner) {
            return Some(OwnerState::Dangling);
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
