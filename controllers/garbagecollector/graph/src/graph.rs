//! The graph of objects and their owner references. It is the collector's only store.
//!
//! A node is an object that a watch has reported, or one that other objects refer to. An edge is
//! one reference from a dependent to an owner. Changes go in, and the graph returns the work that
//! follows: the objects to look at ([`FollowUps`]), and the requests and actions of an attempt to
//! process one object ([`Attempt`]).
//!
//! Architecture Invariant: synchronous and pure. No clock, no lock, no I/O. The resulting graph
//! does not depend on the order in which the changes of different resources arrive.
//!
//! Architecture Invariant: an owner counts as absent only when that is proven: its deletion was
//! observed, a consistent list lacked it, the apiserver answered that it does not exist, or its
//! name now has another UID. A resource that is no longer watched proves nothing.

mod arena;
mod attempt;
mod change;
mod cycles;
mod edges;
mod follow_ups;
mod foreground;
mod full_scan;
mod lost;
mod node;
mod orphaning;
mod proofs;
mod step;
#[cfg(test)]
mod tests;
mod view;

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use hashbrown::HashTable;

use self::{
    arena::{Arena, Id},
    node::{Coordinates, Edge, Flags, NO_VERSION, NONE, Node},
};
pub use self::{
    attempt::{Attempt, AttemptStep, Intent, NoopReason, ReadRequest, ReadResult},
    follow_ups::{FollowUps, InvalidReason, InvalidReference},
    full_scan::Statistics,
    orphaning::Orphaning,
    view::{GraphSnapshot, NodeView},
};
use crate::{
    absent_owner_cache::{AbsentOwnerCache, group_of},
    intern::Interner,
    orphaned_owners::OrphanedOwners,
    uid::{Uid, Uids},
};

/// The group, version and kind of a resource's objects.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Kind {
    api_version: Box<str>,
    kind: Box<str>,
}

/// Identifies the monitor of one resource: the watch that reports the resource's objects to the
/// graph.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Monitor(u16);

/// A graph of objects and their owner references; see the module documentation.
#[derive(Debug)]
pub struct Graph {
    nodes: Arena<Node>,
    edges: Arena<Edge>,
    /// Nodes by UID. Each entry holds part of the hash, so that growing the table does not read the
    /// nodes.
    index: HashTable<(u32, Id)>,
    hasher: RandomState,
    uids: Uids,
    kinds: Interner<Kind>,
    namespaces: Interner<str>,
    /// The coordinates that references give for their owners where they differ from the owners'
    /// own.
    coordinates: Interner<Coordinates>,
    absent: AbsentOwnerCache,
    /// The owners whose dependents are orphaned when they are found.
    orphaned_owners: OrphanedOwners,
    monitors: Vec<Option<Watched>>,
    /// The serial number of the last monitor that was added.
    last_serial: u64,
    /// The number of nodes of each kind, by the kind's number.
    tallies: Vec<Tally>,
    /// The nodes that wait for their dependents to be deleted.
    waiting: BTreeSet<Id>,
    invalid: [u64; 3],
    name_bytes: usize,
    last_namespace: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    observed: u32,
    virtual_: u32,
    /// How many of the virtual nodes are lost.
    lost: u32,
}

/// The state of a watched resource.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct Watched {
    kind: u32,
    /// The number of its current list.
    generation: u32,
    /// The latest resourceVersion seen.
    version: u64,
    /// The number of its nodes, and how many of them the current list or a later event has
    /// reported.
    nodes: u32,
    listed: u32,
    /// Whether the current list contains an object that could not be decoded at all. Such a list
    /// does not prove that other objects are absent.
    has_gaps: bool,
    /// Whether its watch is open, or its list has just been completed. Otherwise etcd may have been
    /// restored from a backup meanwhile, so a proof that rests on it is not used.
    is_connected: bool,
    /// Whether the versions of its store were compared since its watch resumed. Until then, etcd
    /// may have been restored, so no proof about a kind without a watch is used.
    is_checked: bool,
    /// Whether resourceVersions have decreased, and the list that follows is not complete. Until
    /// then, the versions of its nodes may be those of the former store.
    is_outdated: bool,
    /// Whether its resourceVersions are independent of those of other resources: an aggregated
    /// apiserver has its own store.
    is_separate: bool,
    /// Monitors are numbered as they are added. If two report one object, the later one owns it.
    serial: u64,
}

/// Spreads a hash over 64 bits, because the table uses both its lowest and its highest bits.
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
            orphaned_owners: OrphanedOwners::default(),
            monitors: Vec::new(),
            last_serial: 0,
            tallies: Vec::new(),
            waiting: BTreeSet::new(),
            invalid: [0; 3],
            name_bytes: 0,
            last_namespace: NONE,
        }
    }
}

impl Graph {
    /// Returns the UID of this text if a node has it.
    pub fn uid(&self, text: &str) -> Option<Uid> {
        let uid = self.uids.find(text)?;
        self.find(uid).map(|_| uid)
    }

    /// Returns the text of a UID.
    fn text(&self, uid: Uid) -> String {
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

    /// Does the same as [`Graph::is_kind`], for any version of the group.
    fn is_kind_of_group(&self, number: u32, api_version: &str, kind: &str) -> bool {
        let known = self.kinds.get(number);
        known.is_some_and(|known| *known.kind == *kind && group_of(&known.api_version) == group_of(api_version))
    }

    fn namespace(&mut self, namespace: Option<&str>) -> u32 {
        let Some(namespace) = namespace else { return NONE };
        // Lists are sorted, so the namespace is usually that of the previous object.
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

    /// Returns a number that the objects of one namespace have in common; 0 for an unknown object
    /// and one without a namespace. A virtual node counts as in the namespace of its first
    /// dependent. The number is valid until the last object of the namespace is gone.
    pub fn namespace_number(&self, uid: Uid) -> u32 {
        self.find(uid).map_or(NONE, |id| self.nodes[id].namespace)
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

    /// Inserts a node that no watch has reported yet.
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
        // The lower half of the hash is as well distributed as the whole.
        u32::try_from(self.hasher.hash_one(uid) & u64::from(u32::MAX)).unwrap_or_default()
    }

    /// Removes a node that has no edges, and everything that was kept for it.
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

    /// Makes a node virtual: forgets what watches have reported of it, except its references and
    /// the references to it.
    fn unobserve(&mut self, id: Id) {
        self.waiting.remove(&id);
        self.set_lost(id, false);
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
            self.forget_invalid_scopes(id);
        }
    }
}
