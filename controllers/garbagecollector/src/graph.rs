//! The graph of what is owned by what: changes in, work out. It is the only store that the collector has.
//!
//! A node is an object that was seen, or one that others refer to. An edge is one reference of a dependent to an owner. Everything else
//! follows: who is to be looked at after a change ([`FollowUps`]), and what an attempt at one object has to ask and to do ([`Attempt`]).
//!
//! Architecture Invariant: sync and pure. No clock, no lock, no I/O. The order in which resources tell their changes makes no difference to
//! the graph that comes of them.
//! Architecture Invariant: nothing but a proof makes an owner absent: its deletion was seen, a consistent list lacked it, or an answer said
//! so. A resource that nobody watches any more proves nothing.

mod arena;
mod attempt;
mod change;
mod edges;
mod full_scan;
#[cfg(test)]
mod tests;
mod view;

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use hashbrown::HashTable;

use self::arena::{Arena, Id};
pub use self::{
    attempt::{Attempt, AttemptStep, Intent, NoopReason, Orphaning, ReadRequest, ReadResult, ReferencePositions},
    full_scan::Statistics,
    view::{GraphSnapshot, NodeView},
};
use crate::{
    absent_owner_cache::AbsentOwnerCache,
    identity::Identity,
    intern::Interner,
    uid::{Uid, Uids},
};

/// A version that is not known, or is no number.
const NO_VERSION: u64 = 0;
/// The number of no namespace, and of coordinates that agree with the owner's.
const NONE: u32 = 0;

/// The group, version and kind that a resource's objects have.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Kind {
    /// Group and version.
    pub api_version: Box<str>,
    /// Kind.
    pub kind: Box<str>,
}

/// A resource that is watched, by number.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Monitor(u16);

/// What a change makes necessary. Who calls empties it.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct FollowUps {
    /// These may have to be collected, or asked for.
    pub attempt: Vec<Uid>,
    /// The dependents of these are to be orphaned.
    pub orphan: Vec<Uid>,
    /// Somebody should hear of these references.
    pub invalid: Vec<InvalidReference>,
    /// Dependents of these are to go from now on.
    pub cascades_started: Vec<Uid>,
    /// The last dependent of these is gone.
    pub cascades_finished: Vec<Uid>,
}

/// A reference that cannot mean what it says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidReference {
    /// Who refers.
    pub dependent: Identity,
    /// What it refers to, in its own namespace.
    pub owner: Identity,
    /// What is wrong.
    pub reason: InvalidReason,
}

/// Why a reference is invalid.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum InvalidReason {
    /// The owner is in another namespace.
    Namespace,
    /// The owner has another apiVersion, kind or name.
    Coordinates,
    /// The owner is in a namespace and the dependent in none.
    Scope,
}

impl InvalidReason {
    /// All of them, with their names in metrics.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Namespace, "namespace"),
        (Self::Coordinates, "coordinates"),
        (Self::Scope, "scope"),
    ];
}

/// See the module.
#[derive(Debug)]
pub struct Graph {
    nodes: Arena<Node>,
    edges: Arena<Edge>,
    /// By UID, with a part of its hash: growing needs no look at the nodes.
    index: HashTable<(u32, Id)>,
    hasher: RandomState,
    uids: Uids,
    kinds: Interner<Kind>,
    namespaces: Interner<str>,
    /// What references say of their owners, where it is not what the owners say of themselves.
    coordinates: Interner<Coordinates>,
    absent: AbsentOwnerCache,
    monitors: Vec<Option<Watched>>,
    born: u64,
    /// How many nodes there are of each kind, by its number.
    tallies: Vec<Tally>,
    /// The nodes that wait for their dependents.
    waiting: BTreeSet<Id>,
    invalid: [u64; 3],
    name_bytes: usize,
    last_namespace: u32,
}

/// What is said of an owner.
#[derive(Debug, Eq, Hash, PartialEq)]
struct Coordinates {
    kind: u32,
    name: Box<str>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    observed: u32,
    virtual_: u32,
}

/// A resource as far as it was listed.
#[derive(Debug)]
struct Watched {
    kind: u32,
    /// Counts its lists.
    generation: u32,
    /// The latest version that was seen.
    version: u64,
    /// How many nodes it has, and how many of them came in the present list.
    nodes: u32,
    listed: u32,
    /// The present list has an object that could not be read at all: what it lacks proves nothing.
    has_gaps: bool,
    /// When it began to be watched, as a number: of two that show an object the later one has it.
    born: u64,
}

#[derive(Debug)]
struct Node {
    uid: Uid,
    version: u64,
    name: Box<str>,
    kind: u32,
    namespace: u32,
    /// Its first reference to an owner.
    owners: Option<Id>,
    /// The first reference to it.
    dependents: Option<Id>,
    dependent_count: u32,
    /// How many of the references to it block its deletion.
    blocking: u32,
    generation: u32,
    monitor: Monitor,
    flags: Flags,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Flags(u8);

impl Flags {
    /// A watch has shown it, and has not shown its end. Otherwise it is known by references alone: a virtual node.
    const OBSERVED: u8 = 1;
    const DELETING: u8 = 2;
    const FOREGROUND: u8 = 4;
    const ORPHAN: u8 = 8;
    /// Its dependents are to go, and some are left.
    const CASCADING: u8 = 16;

    fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.0 |= flag;
        } else {
            self.0 &= !flag;
        }
    }
}

impl Node {
    fn is_observed(&self) -> bool {
        self.flags.has(Flags::OBSERVED)
    }

    fn is_deleting(&self) -> bool {
        self.flags.has(Flags::DELETING)
    }

    /// It is being deleted and waits for its dependents to be orphaned.
    fn is_orphaning(&self) -> bool {
        self.is_deleting() && self.flags.has(Flags::ORPHAN)
    }

    /// It is being deleted and waits for its dependents to be deleted.
    fn is_waiting_for_dependents(&self) -> bool {
        self.is_deleting() && self.flags.has(Flags::FOREGROUND) && !self.flags.has(Flags::ORPHAN)
    }
}

#[derive(Debug)]
struct Edge {
    owner: Id,
    dependent: Id,
    /// The next reference of the same dependent.
    next_owner: Option<Id>,
    /// The neighbours among the references to the same owner.
    next_dependent: Option<Id>,
    previous_dependent: Option<Id>,
    /// What it says of its owner; [`NONE`]: what the owner says of itself.
    coordinates: u32,
    blocks: bool,
    invalid: Option<InvalidReason>,
}

/// A hash as tables want it: with both ends in use.
fn spread(short: u32) -> u64 {
    u64::from(short).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Default for Graph {
    fn default() -> Self {
        Self {
            nodes: Arena::default(),
            edges: Arena::default(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            uids: Uids::default(),
            kinds: Interner::default(),
            namespaces: Interner::default(),
            coordinates: Interner::default(),
            absent: AbsentOwnerCache::default(),
            monitors: Vec::new(),
            born: 0,
            tallies: Vec::new(),
            waiting: BTreeSet::new(),
            invalid: [0; 3],
            name_bytes: 0,
            last_namespace: NONE,
        }
    }
}

impl Graph {
    /// The UID of this text, if any node has it.
    pub fn uid(&self, text: &str) -> Option<Uid> {
        let uid = self.uids.find(text)?;
        self.find(uid).map(|_| uid)
    }

    /// What a UID is written as.
    pub fn text(&self, uid: Uid) -> String {
        self.uids.text(uid)
    }

    fn find(&self, uid: Uid) -> Option<Id> {
        let short = self.short_hash(uid);
        let found = self.index.find(spread(short), |(known, id)| {
            *known == short && self.nodes[*id].uid == uid
        });
        found.map(|(_, id)| *id)
    }

    fn kind(&mut self, api_version: &str, kind: &str) -> u32 {
        let kind = Kind {
            api_version: api_version.into(),
            kind: kind.into(),
        };
        let number = self.kinds.intern(&kind, |kind| Arc::new(kind.clone()));
        if self.tallies.len() <= number as usize {
            self.tallies.resize(number as usize + 1, Tally::default());
        }
        number
    }

    fn is_kind(&self, number: u32, api_version: &str, kind: &str) -> bool {
        let known = self.kinds.get(number);
        known.is_some_and(|known| *known.kind == *kind && *known.api_version == *api_version)
    }

    fn namespace(&mut self, namespace: Option<&str>) -> u32 {
        let Some(namespace) = namespace else { return NONE };
        // Lists are sorted: it is mostly that of the object before.
        if self
            .namespaces
            .get(self.last_namespace)
            .is_some_and(|last| **last == *namespace)
        {
            self.namespaces.acquire(self.last_namespace);
        } else {
            self.last_namespace = self.namespaces.intern(namespace, |name| name.into());
        }
        self.last_namespace
    }

    fn is_namespace(&self, number: u32, namespace: Option<&str>) -> bool {
        match namespace {
            None => number == NONE,
            Some(namespace) => self.namespaces.get(number).is_some_and(|known| **known == *namespace),
        }
    }

    fn namespace_of(&self, id: Id) -> Option<&str> {
        self.namespaces
            .get(self.nodes[id].namespace)
            .map(|namespace| &**namespace)
    }

    /// Puts a node that nobody has seen yet into the graph.
    fn insert(&mut self, uid: Uid, kind: u32, namespace: u32, name: &str) -> Id {
        let id = self.nodes.insert(Node {
            uid,
            version: NO_VERSION,
            name: name.into(),
            kind,
            namespace,
            owners: None,
            dependents: None,
            dependent_count: 0,
            blocking: 0,
            generation: 0,
            monitor: Monitor(u16::MAX),
            flags: Flags::default(),
        });
        self.name_bytes += name.len();
        self.tallies[kind as usize].virtual_ += 1;
        let short = self.short_hash(uid);
        self.index
            .insert_unique(spread(short), (short, id), |(short, _)| spread(*short));
        id
    }

    fn short_hash(&self, uid: Uid) -> u32 {
        // The lower half of a hash is as good as all of it.
        u32::try_from(self.hasher.hash_one(uid) & u64::from(u32::MAX)).unwrap_or_default()
    }

    /// Takes a node that has no edges out of the graph, and everything that was known because of it.
    fn take_out(&mut self, id: Id, follow_ups: &mut FollowUps) {
        self.unobserve(id);
        let uid = self.nodes[id].uid;
        let short = self.short_hash(uid);
        if let Ok(entry) = self.index.find_entry(spread(short), |(_, known)| *known == id) {
            entry.remove();
        }
        if let Some(node) = self.nodes.remove(id) {
            self.tallies[node.kind as usize].virtual_ -= 1;
            self.name_bytes -= node.name.len();
            self.kinds.release(node.kind);
            self.namespaces.release(node.namespace);
            if node.flags.has(Flags::CASCADING) {
                follow_ups.cascades_finished.push(uid);
            }
        }
        self.absent.forget(uid);
        self.uids.forget(uid);
        if self.nodes.len() == 0 {
            self.index = HashTable::new();
        }
    }

    /// Nobody watches the node any more: what was seen of it is forgotten, but for its references and for who refers to it.
    fn unobserve(&mut self, id: Id) {
        self.waiting.remove(&id);
        let node = &mut self.nodes[id];
        let was_observed = node.is_observed();
        let cascading = node.flags.0 & Flags::CASCADING;
        node.flags = Flags(cascading);
        node.version = NO_VERSION;
        if was_observed {
            let tally = &mut self.tallies[node.kind as usize];
            tally.observed -= 1;
            tally.virtual_ += 1;
            if let Some(Some(watched)) = self.monitors.get_mut(usize::from(node.monitor.0)) {
                watched.nodes -= 1;
                watched.listed -= u32::from(node.generation == watched.generation);
            }
            node.monitor = Monitor(u16::MAX);
        }
    }
}
