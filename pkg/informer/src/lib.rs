//! Shared informers: one list-and-watch a resource, however many controllers ask.
//!
//! [`Factory::informer`] hands out [`Informer`]s: a read-only store of projections ([`Projection`]: what is decided on, nothing
//! more), indexes, and subscriptions that see every change in order. Whoever subscribes late gets what is in the store first; when
//! the last informer of a watch is dropped, the watch ends.
//!
//! The pure part is [`Store`]; [`reflect`] is the loop around it that lists, watches and recovers. The loop writes into any
//! [`Sink`], so that a controller with a model of its own (the garbage collector's graph) keeps no second copy.
//!
//! A handler that panics robs nobody else: it is told again of what it missed. A panic of an index function or a sink lists again.
//!
//! Architecture Invariant: a handler never blocks and never fails; memory is bounded by distinct objects and keys, not by events.

mod backoff;
mod discovery;
mod explain;
mod factory;
pub mod indexes;
mod informer;
mod metadata;
mod protocol;
mod reflect;
mod report;
#[cfg(test)]
mod scripted;
mod store;
mod watch;

pub use discovery::{Discovery, ServedResources, Verb};
pub use factory::{Factory, InformerConfig};
pub use informer::{Cache, CacheSyncTimeout, Index, Informer, Subscription};
pub use metadata::MetadataOnly;
pub use reflect::{ReflectorConfig, Sink, reflect};
pub use report::{Report, StatusReporter, WatchFailure};
pub use store::{Cause, Change, Delta, Event, IndexFn, Store};
pub use watch::Watch;

use portreeve_api::Metadata;

/// What an informer keeps of each object: a struct that names the fields that are decided on.
///
/// It is decoded straight from the wire; what it does not name is skipped and never stored, managedFields above all. Keep what is
/// only compared or passed on as a whole (a Pod template) as raw JSON.
pub trait Projection: serde::de::DeserializeOwned + Send + Sync + 'static {
    /// Ask the apiserver for `PartialObjectMetadata` alone.
    const METADATA_ONLY: bool = false;

    /// Identity and version.
    fn metadata(&self) -> &Metadata;
}

/// What an object of a list or a watch is decoded into, straight from the wire: a [`Projection`], or what a [`Sink`] with a model of its
/// own needs and nothing more.
pub trait WatchedObject: serde::de::DeserializeOwned + Send + 'static {
    /// Ask the apiserver for `PartialObjectMetadata` alone.
    const METADATA_ONLY: bool = false;

    /// `metadata.name`. What has none is no object, and is not taken in.
    fn name(&self) -> &str;

    /// `metadata.resourceVersion`.
    fn resource_version(&self) -> &str;
}

impl<T: Projection> WatchedObject for T {
    const METADATA_ONLY: bool = <T as Projection>::METADATA_ONLY;

    fn name(&self) -> &str {
        &self.metadata().name
    }

    fn resource_version(&self) -> &str {
        &self.metadata().resource_version
    }
}
