//! An attempt to process one object: the requests that are needed to decide, and the action that
//! follows.
//!
//! The caller records the apiserver's answers with [`Attempt::record`] and calls `Graph::step`
//! again. So tests cover the whole rule, with every possible answer, without a server.

use crate::{
    identity::Identity,
    metadata::{PartialObject, ReferencePositions},
    uid::Uid,
    verdict::{KeepReason, OwnerState, PropagationPolicy},
};

/// The state of an attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub(super) uid: Uid,
    /// The object as just read from the apiserver. It takes precedence over what a watch has
    /// reported.
    pub(super) live: Option<(Identity, Box<PartialObject>)>,
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
    /// Unset `blockOwnerDeletion`, in this version only, because the object and its owner wait for
    /// each other to be deleted.
    BreakCycle {
        /// The object to change.
        item: Identity,
        /// Its resourceVersion.
        version: Box<str>,
        /// The references to change: positions and UIDs.
        references: ReferencePositions,
        /// The other members of the cycle, from the object's owner on. Empty if the object owns
        /// itself.
        cycle: Vec<Identity>,
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
        let (Self::Delete { item, .. }
        | Self::RemoveReferences { item, .. }
        | Self::BreakCycle { item, .. }
        | Self::RemoveFinalizer { item }) = self;
        item
    }
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
    pub(super) fn recorded_owner_state(&self, owner: Identity) -> Known {
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

    pub(super) fn fact(&self, identity: &Identity) -> Option<&ReadResult> {
        let mut facts = self.facts.iter();
        facts.find(|(known, _)| known == identity).map(|(_, fact)| fact)
    }
}

/// The state of an owner, or the request that is needed to find it out.
pub(super) enum Known {
    OwnerState(OwnerState),
    Read(Identity),
}
