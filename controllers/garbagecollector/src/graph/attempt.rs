//! One attempt at one object: what has to be asked, until it is clear what is to be done.
//!
//! The apiserver's answers come in through [`Attempt::tell`]; [`Graph::step`] then goes on. So the whole rule, with every answer that there
//! can be, runs without a server.

use super::{Edge, Graph, Id, Invalidity, NONE};
use crate::{
    identity::Identity,
    seen::{Reference, Seen},
    uid::Uid,
    verdict::{Case, Policy, Reason, Standing, Verdict, decide},
};

/// How far an attempt has come.
#[derive(Clone, Debug)]
pub struct Attempt {
    uid: Uid,
    /// The object as the apiserver has just shown it; it counts more than what a watch has shown.
    live: Option<(Identity, Box<Seen>)>,
    /// What is known of owners, as its dependent means them.
    facts: Vec<(Identity, Fact)>,
}

/// What the apiserver said of an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Fact {
    /// It exists, with that UID.
    Alive(Box<Seen>),
    /// There is none, or another one in its place. The graph has been told.
    Absent,
    /// Nobody can tell: its kind is not served, it may not be read, or the apiserver has failed.
    Unknown,
    /// It would be in a namespace, and who means it is in none.
    Misplaced,
}

/// What to ask the apiserver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Question {
    /// The object.
    pub identity: Identity,
    /// Whether it is the object itself that the attempt is about, and no owner of it.
    pub is_item: bool,
}

/// What comes next.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// Ask this, and tell the answer.
    Ask(Question),
    /// Do this; the attempt is over.
    Do(Intent),
    /// Nothing is to be done; the attempt is over.
    Rest(Rest),
}

/// How an attempt ends that has nothing to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rest {
    /// There is no such node any more.
    Gone,
    /// All that it could be is proven absent.
    Absent,
    /// It is known by references alone, and some of them cannot be asked for now.
    Unknown,
    /// It exists, and no watch has shown it yet. It is to be looked at again: it may come and go unseen.
    Unobserved,
    /// It stays, for this reason.
    Kept(Reason),
}

/// References of an object: each by its place among them, and the UID that it has there.
pub type Places = Vec<(usize, Box<str>)>;

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
        policy: Policy,
        /// Let these references no longer block their owners first: places and UIDs.
        unblock: Places,
        /// Why: each owner, and how it stands.
        owners: Vec<(Identity, Standing)>,
    },
    /// Take references away: places and UIDs.
    Release {
        /// Of which object.
        item: Identity,
        /// Which references.
        references: Places,
        /// Why: each owner, and how it stands.
        owners: Vec<(Identity, Standing)>,
    },
    /// Take the finalizer `foregroundDeletion` away.
    Finish {
        /// From which object.
        item: Identity,
    },
}

impl Intent {
    /// The object that is changed.
    pub fn item(&self) -> &Identity {
        let (Self::Delete { item, .. } | Self::Release { item, .. } | Self::Finish { item }) = self;
        item
    }
}

/// What orphaning the dependents of an owner takes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Orphaning {
    /// The owner, which waits for it.
    pub owner: Identity,
    /// Its dependents, with their references to it: places and UIDs.
    pub dependents: Vec<(Identity, Places)>,
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

    /// The answer to a question. That something is absent has to be told to the graph first.
    pub fn tell(&mut self, question: Question, fact: Fact) {
        match fact {
            Fact::Alive(seen) if question.is_item => {
                // One that is known by references alone was taken to be where they are; where it is, it says itself.
                let mut identity = question.identity;
                identity.namespace.clone_from(&seen.metadata.namespace);
                self.live = Some((identity, seen));
            }
            fact => {
                self.facts.retain(|(known, _)| *known != question.identity);
                self.facts.push((question.identity, fact));
            }
        }
    }

    /// How often the apiserver was asked.
    pub fn asked(&self) -> usize {
        self.facts.len() + usize::from(self.live.is_some())
    }

    /// How an object stands with an owner, by what was asked in this attempt.
    fn stand(&self, owner: Identity) -> Known {
        let standing = match self.fact(&owner) {
            None => return Known::Ask(owner),
            Some(Fact::Alive(seen)) if seen.metadata.is_waiting() => Standing::Waiting,
            Some(Fact::Alive(_)) => Standing::Solid,
            Some(Fact::Misplaced) => Standing::Misplaced,
            // What is absent the graph knows, unless it has seen it since: then somebody looks again.
            Some(Fact::Absent | Fact::Unknown) => Standing::Unknown,
        };
        Known::Standing(standing)
    }

    fn fact(&self, identity: &Identity) -> Option<&Fact> {
        let mut facts = self.facts.iter();
        facts.find(|(known, _)| known == identity).map(|(_, fact)| fact)
    }
}

/// How an object stands with an owner, or what has to be asked for that.
enum Known {
    Standing(Standing),
    Ask(Identity),
}

impl Graph {
    /// What an attempt comes to next.
    pub fn step(&mut self, attempt: &Attempt) -> Step {
        let Some(id) = self.find(attempt.uid) else {
            return Step::Rest(Rest::Gone);
        };
        let (item, seen) = match &attempt.live {
            Some((identity, seen)) => (identity.clone(), (**seen).clone()),
            None if self.nodes[id].is_observed() => (self.identity(id), self.seen(id)),
            None => return self.guess(id, attempt),
        };
        let mut owners = Vec::with_capacity(seen.metadata.owner_references.len());
        if !seen.metadata.deleting {
            for reference in &seen.metadata.owner_references {
                let owner = Identity::of_owner(reference, item.namespace.as_deref());
                match self.stand(reference, owner.clone(), attempt) {
                    Known::Standing(standing) => owners.push((owner, standing)),
                    Known::Ask(identity) => {
                        return Step::Ask(Question {
                            identity,
                            is_item: false,
                        });
                    }
                }
            }
        }
        let case = self.case(id, &seen, &owners);
        self.conclude(id, item, &seen, owners, &decide(&case))
    }

    fn conclude(
        &self,
        id: Id,
        item: Identity,
        seen: &Seen,
        owners: Vec<(Identity, Standing)>,
        verdict: &Verdict,
    ) -> Step {
        let references = &seen.metadata.owner_references;
        let place = |place: usize| (place, references[place].uid.clone());
        match verdict {
            Verdict::Keep(_) if !self.nodes[id].is_observed() => Step::Rest(Rest::Unobserved),
            Verdict::Keep(reason) => Step::Rest(Rest::Kept(*reason)),
            Verdict::Finish => Step::Do(Intent::Finish { item }),
            Verdict::Release(places) => Step::Do(Intent::Release {
                item,
                references: places.iter().copied().map(place).collect(),
                owners,
            }),
            // A version that is no number is not kept.
            Verdict::Delete { .. } if seen.metadata.resource_version.is_empty() => Step::Ask(Question {
                identity: item,
                is_item: true,
            }),
            Verdict::Delete { policy, unblock } => {
                let blocking = (0..references.len()).filter(|place| *unblock && references[*place].blocks);
                Step::Do(Intent::Delete {
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
    pub(super) fn case(&self, id: Id, seen: &Seen, owners: &[(Identity, Standing)]) -> Case {
        let node = &self.nodes[id];
        let meta = &seen.metadata;
        let waits = owners.iter().any(|(_, standing)| *standing == Standing::Waiting);
        Case {
            stage: meta.stage(),
            orphan: meta.finalizers.orphan,
            foreground: meta.finalizers.foreground,
            dependents: node.dependent_count,
            blocking: node.blocking,
            circle: waits && self.dependents(id).any(|dependent| self.nodes[dependent].is_waiting()),
            owners: owners.iter().map(|(_, standing)| *standing).collect(),
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
                Some(Fact::Absent) => Known::Standing(Standing::Dangling),
                _ => attempt.stand(owner),
            };
        };
        if self.absent.look_up(uid, reference, owner.namespace.as_deref()) {
            return Known::Standing(Standing::Dangling);
        }
        match self.find(uid).filter(|id| self.means(*id, reference, &owner)) {
            Some(id) if !self.nodes[id].is_waiting() => Known::Standing(Standing::Solid),
            // Who is deleted for an owner that waits has to be sure that it still does: it may orphan them instead by now.
            _ => attempt.stand(owner),
        }
    }

    /// Whether a node that was seen is what is meant.
    pub(super) fn means(&self, id: Id, reference: &Reference, owner: &Identity) -> bool {
        let node = &self.nodes[id];
        node.is_observed()
            && *node.name == *reference.name
            && self.is_kind(node.kind, &reference.api_version, &reference.kind)
            && (node.namespace == NONE || self.is_namespace(node.namespace, owner.namespace.as_deref()))
    }

    /// A node that nobody watches: its dependents say what it could be.
    fn guess(&self, id: Id, attempt: &Attempt) -> Step {
        let mut is_unknown = false;
        let mut next = self.nodes[id].dependents;
        // What was watched once and has owners is somewhere, whatever its dependents say.
        let is_itself = next.is_none() || self.nodes[id].owners.is_some();
        let own = is_itself.then(|| self.identity(id));
        let guesses = std::iter::from_fn(|| {
            let edge = next?;
            next = self.edges[edge].next_dependent;
            Some(self.meant(edge))
        });
        for identity in own.into_iter().chain(guesses) {
            if self.is_absent(&identity) {
                continue;
            }
            match attempt.fact(&identity) {
                None => {
                    return Step::Ask(Question {
                        identity,
                        is_item: true,
                    });
                }
                // What is misplaced is collected by nobody, whatever is asked.
                Some(Fact::Absent | Fact::Alive(_) | Fact::Misplaced) => {}
                Some(Fact::Unknown) => is_unknown = true,
            }
        }
        Step::Rest(if is_unknown { Rest::Unknown } else { Rest::Absent })
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
        uid.is_some_and(|uid| self.absent.knows(uid, &reference, identity.namespace.as_deref()))
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
    pub(super) fn stands(&self, edge: Id) -> Option<Standing> {
        let owner = self.meant(edge);
        if self.is_absent(&owner) {
            return Some(Standing::Dangling);
        }
        let node = &self.nodes[self.edges[edge].owner];
        match self.invalidity(edge) {
            Some(Invalidity::Scope) if node.is_observed() => Some(Standing::Misplaced),
            None if node.is_observed() && node.is_waiting() => Some(Standing::Waiting),
            None if node.is_observed() => Some(Standing::Solid),
            _ => None,
        }
    }
}
