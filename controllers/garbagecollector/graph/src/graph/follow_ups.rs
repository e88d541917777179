//! The work that follows from a change of the graph.

use crate::{identity::Identity, uid::Uid};

/// The work that follows from a change. The caller drains it.
#[derive(Debug, Default, Eq, PartialEq)]
pub struct FollowUps {
    /// Objects that may have to be collected, or read from the apiserver.
    pub attempt: Vec<Uid>,
    /// Owners whose dependents are to be orphaned.
    pub orphan: Vec<Uid>,
    /// Invalid references to report.
    pub invalid: Vec<InvalidReference>,
    /// Owners whose dependents are to be deleted from now on.
    pub cascades_started: Vec<Uid>,
    /// Owners whose last dependent is gone.
    pub cascades_finished: Vec<Uid>,
}

/// A reference that cannot denote the object whose UID it names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidReference {
    /// The object that has the reference.
    pub dependent: Identity,
    /// The owner that the reference names, in the dependent's namespace.
    pub owner: Identity,
    /// Why the reference is invalid.
    pub reason: InvalidReason,
}

/// Why a reference is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InvalidReason {
    /// The owner is in another namespace.
    Namespace,
    /// The owner has another apiVersion, kind or name.
    Coordinates,
    /// The owner is namespaced and the dependent is cluster-scoped.
    Scope,
}

impl InvalidReason {
    pub(super) const ALL: [Self; 3] = [Self::Namespace, Self::Coordinates, Self::Scope];

    /// Returns the value of the metric label `reason`.
    pub fn label(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::Coordinates => "coordinates",
            Self::Scope => "scope",
        }
    }
}
