//! The pure part of the garbage collector: a graph of objects and their owner references, and the
//! decisions on it.
//!
//! [`Graph`] takes changes and returns the objects to look at. [`Graph::step`] returns the next
//! request or action for one object. `verdict.rs` decides whether the object is kept, changed or
//! deleted. [`dump`] and [`explain`] render the graph for the debug pages. The shell is another
//! crate, `portreeve-garbagecollector`: it watches resources, sends the requests and carries out
//! the decisions.
//!
//! Architecture Invariant: pure. This crate depends on no runtime, client, clock or store. Of our
//! crates it uses only portreeve-api.
//!
//! Architecture Invariant: the collector never deletes an object that one of its owners keeps. A
//! deletion carries the UID and resourceVersion that the decision was based on. At that time, each
//! owner was proven absent, or was just read from the apiserver and waited for its dependents.

mod absent_owner_cache;
pub mod dump;
pub mod explain;
mod graph;
mod identity;
mod intern;
mod metadata;
mod orphaned_owners;
mod uid;
mod verdict;

pub use absent_owner_cache::Lookups;
pub use graph::{
    Attempt, AttemptStep, FollowUps, Graph, GraphSnapshot, Intent, InvalidReason, InvalidReference, Monitor, NodeView,
    NoopReason, Orphaning, ReadRequest, ReadResult, Statistics,
};
pub use identity::Identity;
pub use metadata::{FOREGROUND, Finalizers, ORPHAN, PartialMetadata, PartialObject, Reference, ReferencePositions};
pub use orphaned_owners::OrphanedOwners;
pub use uid::Uid;
pub use verdict::{KeepReason, OwnerState, PropagationPolicy};
