//! The nouns: object keys, resources, lean metadata, owner references, conditions and our own API types.
//!
//! Everything else in Portreeve talks in these words. The API types derive the CustomResourceDefinitions that `deploy/crds` holds.
//!
//! Architecture Invariant: no I/O, no clock, no async. A time is always an argument.

pub mod conditions;
mod crontab;
mod foo;
mod key;
mod metadata;
mod resource;

pub use crontab::{
    CRONTABS, ConcurrencyPolicy, CronTab, CronTabSpec, CronTabStatus, DstPolicyName, JobReference, RUN_NOW,
};
pub use foo::{FOOS, Foo, FooSpec, FooStatus};
pub use key::ObjectKey;
pub use metadata::{Metadata, OwnerReference};
pub use resource::{CRDS, Resource, Scope};
