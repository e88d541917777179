//! Shared informers: one list-and-watch per resource, shared by all controllers.
//!
//! [`Factory::informer`] returns an [`Informer`]: a read-only store of projections (see
//! [`Projection`]), indexes, and subscriptions that receive every change in order. A new subscriber
//! first receives the objects that are already in the store.
//!
//! All informers of a resource share one watch, whatever their projections. So does a controller
//! with its own model (the garbage collector's graph), which attaches a [`Sink`] and needs no
//! second copy of the objects. The watch requests only metadata while no reader needs more, and
//! ends when its last reader is dropped.
//!
//! [`Store`] is pure. The loop that lists, watches and recovers from failures is in `reflect.rs`.
//!
//! A handler that panics does not affect other handlers, and the informer redelivers the changes
//! that it missed. After a panic of an index function or a sink, the loop lists again.
//!
//! # Trust in watches
//!
//! | situation | behaviour |
//! |---|---|
//! | a watch is silent for `--watch-idle-timeout` | the reflector restarts it without a log line |
//! | watches bring nothing for four idle timeouts | it relists: something may hold events back |
//! | that relist finds no change | the interval doubles, up to sixteen idle timeouts |
//! | that relist finds a change | the interval becomes one idle timeout |
//! | three consecutive watches are accepted and end at once | it relists |
//! | a 410, as an event or as an HTTP status | it relists |
//! | a page of a list takes too long | later pages are half as large |
//!
//! A reader that is attached before the first page takes part in the first list. A later one causes
//! one more list. Locks are taken in this order: reader, subscribers, store. Handlers run without
//! the last one, so they may read any store.
//!
//! Discovery keeps what it knows through failures: a group version that is stale, or missing while
//! its APIService exists, keeps its resources.
//!
//! Architecture Invariant: a handler must not block and returns no error. Memory is bounded by the
//! number of distinct objects and keys, not by the number of events.

mod backoff;
mod comparison;
mod discovery;
mod explain;
mod factory;
pub mod indexes;
mod informer;
mod metadata;
mod projection;
mod protocol;
mod readers;
mod reconnects;
mod reflect;
mod report;
#[cfg(test)]
mod scripted;
mod shared_watch;
mod store;
mod watch;
mod watch_trust;

pub use comparison::{Comparison, Lag, TerminatingObject};
pub use discovery::{Discovery, ServedResources, Verb};
pub use explain::decode_part;
pub use factory::{Factory, InformerConfig, SharedWatches};
pub use informer::{Cache, CacheSyncTimeout, Index, Informer, Subscription};
pub use metadata::MetadataOnly;
pub use projection::{Projection, WatchedObject};
pub use readers::Sink;
pub use reconnects::Reconnects;
use report::StatusReporter;
pub use report::{ConversionFailure, Report, WatchFailure};
pub use shared_watch::{Attachment, AttachmentStatus};
pub use store::{Cause, Change, Delta, Event, IndexFn, Store};
pub use watch::Watch;
