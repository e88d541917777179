//! The nodes and edges of the graph.

use super::{Id, InvalidReason, Monitor};
use crate::{metadata::PartialMetadata, uid::Uid};

/// The version of a node whose resourceVersion is unknown or not a number.
pub(super) const NO_VERSION: u64 = 0;
/// The number that represents no namespace. As the coordinates of a reference, it means that they
/// are the owner's own.
pub(super) const NONE: u32 = 0;

/// The coordinates that a reference gives for its owner. The namespace is that of the dependent.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Coordinates {
    pub(super) kind: u32,
    pub(super) name: Box<str>,
}

/// An object.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) uid: Uid,
    pub(super) version: u64,
    pub(super) name: Box<str>,
    pub(super) kind: u32,
    pub(super) namespace: u32,
    /// The first of its references to owners.
    pub(super) owners: Option<Id>,
    /// The first reference to it.
    pub(super) dependents: Option<Id>,
    pub(super) dependent_count: u32,
    /// The number of references to it that block its deletion.
    pub(super) blocking: u32,
    pub(super) generation: u32,
    pub(super) monitor: Monitor,
    pub(super) flags: Flags,
}

/// The known facts about an object, one bit each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Flags(pub(super) u8);

impl Flags {
    /// A watch has reported the object, and has not reported its deletion. A node without this flag
    /// is virtual: it is known only from references.
    pub(super) const OBSERVED: u8 = 1;
    pub(super) const DELETING: u8 = 2;
    pub(super) const FOREGROUND: u8 = 4;
    pub(super) const ORPHAN: u8 = 8;
    /// Its dependents are to be deleted, and some are left.
    pub(super) const CASCADING: u8 = 16;
    /// A watch has reported the object, and then its resource could no longer be read. Nothing
    /// suggests that the object is gone, so it is read only when a decision depends on it.
    pub(super) const LOST: u8 = 32;

    pub(super) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.0 |= flag;
        } else {
            self.0 &= !flag;
        }
    }
}

impl Node {
    pub(super) fn is_observed(&self) -> bool {
        self.flags.has(Flags::OBSERVED)
    }

    /// Records the state that a watch has reported.
    pub(super) fn set_observed(&mut self, meta: &PartialMetadata) {
        self.flags.set(Flags::OBSERVED, true);
        self.flags.set(Flags::DELETING, meta.deleting);
        self.flags.set(Flags::FOREGROUND, meta.finalizers.foreground);
        self.flags.set(Flags::ORPHAN, meta.finalizers.orphan);
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.flags.has(Flags::DELETING)
    }

    /// Returns whether it is being deleted and waits until its dependents are orphaned.
    pub(super) fn is_orphaning(&self) -> bool {
        self.is_deleting() && self.flags.has(Flags::ORPHAN)
    }

    /// Returns whether it is being deleted and waits until its dependents are deleted.
    pub(super) fn is_waiting_for_dependents(&self) -> bool {
        self.is_deleting() && self.flags.has(Flags::FOREGROUND) && !self.flags.has(Flags::ORPHAN)
    }
}

/// A reference from a dependent to an owner.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) owner: Id,
    pub(super) dependent: Id,
    /// The next reference of the same dependent.
    pub(super) next_owner: Option<Id>,
    /// The neighbours in the list of references to the same owner.
    pub(super) next_dependent: Option<Id>,
    pub(super) previous_dependent: Option<Id>,
    /// The coordinates that it gives for its owner; [`NONE`] if they are the owner's own.
    pub(super) coordinates: u32,
    pub(super) blocks: bool,
    pub(super) invalid: Option<InvalidReason>,
}

impl Edge {
    /// Returns whether the deletion of the owner in the foreground waits for the dependent. A
    /// cluster-scoped object never depends on a namespaced owner, and nothing would ever end the
    /// wait for it.
    pub(super) fn is_blocking(&self) -> bool {
        self.blocks && self.invalid != Some(InvalidReason::Scope)
    }
}
