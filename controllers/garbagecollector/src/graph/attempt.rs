//! One attempt at one object: what has to be asked, until it is clear what is to be done.
//!
//! The apiserver's answers come in through [`Attempt::record`]; [`Graph::step`] then goes on. So the whole rule, with every answer that there
//! can be, runs without a server.

use super::{Edge, Graph, Id, InvalidReason, NONE};
use crate::{
    identity::Identity,
    metadata::{PartialObject, Reference},
    uid::Uid,
    verdict::{DecisionInput, KeepReason, OwnerState, PropagationPolicy, Verdict, decide},
};

/// How far an attempt has come.
#[derive(Clone, Debug)]
pub struct Attempt {
    uid: Uid,
    /// The object as the apiserver has just shown it; it counts more than what a watch has shown.
    live: Option<(Identity, Box<PartialObject>)>,
    /// What is known of owners, as its dependent means them.
    facts: Vec<(Identity, ReadResult)>,
}

/// What the apiserver said of an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadResult {
    /// It exists, with that UID.
    Found(Box<PartialObject>),
    /// There is none, or another one in its place. The graph has been told.
    Absent,
    /// Nobody can tell: its kind is not served, it may not be read, or the apiserver has failed.
    Unknown,
    /// It would be in a namespace, and who means it is in none.
    Misplaced,
}

/// What to ask the apiserver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReadRequest {
    /// The object.
    pub identity: Identity,
    /// Whether it is the object itself that the attempt is about, and no owner of it.
    pub is_item: bool,
}

/// What comes next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AttemptStep {
    /// Ask this, and tell the answer.
    Read(ReadRequest),
    /// Do this; the attempt is over.
    Apply(Intent),
    /// Nothing is to be done; the attempt is over.
    Noop(NoopReason),
}

/// How an attempt ends that has nothing to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NoopReason {
    /// There is no such node any more.
    Gone,
    /// All that it could be is proven absent.
    Absent,
    /// It is known by references alone, and some of them cannot be asked for now.
    Unknown,
    /// It exists, and no watch has shown it yet. It is to be looked at again: it may come and go unseen.
    Unobserved,
    /// It stays, for this reason.
    Kept(KeepReason),
}

/// References of an object: each by its place among them, and the UID that it has there.
pub type ReferencePositions = Vec<(usize, Box<str>)>;

/// A change of the world that an attempt has come to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Intent {
    /// Delete the object, in this version alone.
    Delete {
        /// Which object.
        item: Identity,
        /// In which version.
        version: Box<str>,
        /// What becomes of its dependents.
        policy: PropagationPolicy,
        /// Let these references no longer block their owners first: places and UIDs.
        unblock: ReferencePositions,
        /// Why: each owner, and how it stands.
        owners: Vec<(Identity, OwnerState)>,
    },
    /// Take references away: places and UIDs.
    RemoveReferences {
        /// Of which object.
        item: Identity,
        /// Which references.
        references: ReferencePositions,
        /// Why: each owner, and how it stands.
        owners: Vec<(Identity, OwnerState)>,
    },
    /// Take the finalizer `foregroundDeletion` away.
    RemoveFinalizer {
        /// From which object.
        item: Identity,
    },
}

impl Intent {
    /// The object that is changed.
    pub fn item(&self) -> &Identity {
        let (Self::Delete { item, .. } | Self::RemoveReferences { item, .. } | Self::RemoveFinalizer { item }) = self;
        item
    }
}

/// What orphaning the dependents of an owner takes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Orphaning {
    /// The owner, which waits for it.
    pub owner: Identity,
    /// Its dependents, with their references to it: places and UIDs.
    pub dependents: Vec<(Identity, ReferencePositions)>,
}

impl Attempt {
    /// An attempt at the object of this UID.
    pub fn new(uid: Uid) -> Self {
        Self {
            uid,
            live: None,
            facts: Vec::new(),
        }
    }

    /// The answer to a request. That something is absent has to be told to the graph first.
    pub fn record(&mut self, request: ReadRequest, fact: ReadResult) {
        match fact {
            ReadResult::Found(seen) if request.is_item => {
                // One that is known by references alone was taken to be where they are; where it is, it says itself.
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

    /// How often the apiserver was asked.
    pub fn asked(&self) -> usize {
        self.facts.len() + usize::from(self.live.is_some())
    }

    /// How an object stands with an owner, by what was asked in this attempt.
    fn stand(&self, owner: Identity) -> Known {
        let owner_state = match self.fact(&owner) {
            None => return Known::Read(owner),
            Some(ReadResult::Found(seen)) if seen.metadata.is_waiting_for_dependents() => {
                OwnerState::WaitingForDependents
            }
            Some(ReadResult::Found(_)) => OwnerState::Solid,
            Some(ReadResult::Misplaced) => OwnerState::Misplaced,
            // What is absent the graph knows, unless it has seen it since: then somebody looks again.
            Some(ReadResult::Absent | ReadResult::Unknown) => OwnerState::Unknown,
        };
        Known::OwnerState(owner_state)
    }

    fn fact(&self, identity: &Identity) -> Option<&ReadResult> {
        let mut facts = self.facts.iter();
        facts.find(|(known, _)| known == identity).map(|(_, fact)| fact)
    }
}

/// How an object stands with an owner, or what has to be asked for that.
enum Known {
    OwnerState(OwnerState),
    Read(Identity),
}

impl Graph {
    /// What an attempt comes to next.
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
            // A version that is no number is not kept.
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

    /// What is known of an object when its fate is decided.
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

    /// Who refers to the node, once for each reference.
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
            // A live object may refer to what nobody in the graph does: what was just asked is all that there is to know.
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
            // Who is deleted for an owner that waits has to be sure that it still does: it may orphan them instead by now.
            _ => attempt.stand(owner),
        }
    }

    /// Whether a node that was seen is what is meant.
    pub(super) fn matches_reference(&self, id: Id, reference: &Reference, owner: &Identity) -> bool {
        let node = &self.nodes[id];
        node.is_observed()
            && *node.name == *reference.name
            && self.is_kind(node.kind, &reference.api_version, &reference.kind)
            && (node.namespace == NONE || self.is_namespace(node.namespace, owner.namespace.as_deref()))
    }

    /// A node that nobody watches: its dependents say what it could be.
    fn guess(&self, id: Id, attempt: &Attempt) -> AttemptStep {
        let mut is_unknown = false;
        let mut next = self.nodes[id].dependents;
        // What was watched once and has owners is somewhere, whatever its dependents say.
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
                // What is misplaced is collected by nobody, whatever is asked.
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

    /// What orphaning the dependents of this owner takes, if it still waits for that.
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

    /// Whether the object is known by references alone.
    pub fn is_virtual(&self, uid: Uid) -> bool {
        self.find(uid).is_some_and(|id| !self.nodes[id].is_observed())
    }

    /// Whether the node waits for its dependents to be orphaned.
    pub fn is_orphaning(&self, uid: Uid) -> bool {
        self.find(uid).is_some_and(|id| self.nodes[id].is_orphaning())
    }

    /// How a reference stands as far as is known without asking; `None`: it would have to be asked.
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
