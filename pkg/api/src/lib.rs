//! Common types: object keys, resources, minimal metadata, owner references, conditions and our own
//! API types.
//!
//! Every crate that handles objects uses these types. The CRDs in `deploy/crds` are generated from
//! the API types.
//!
//! Architecture Invariant: this crate is pure. A time is always an argument.

pub mod conditions;
mod crontab;
mod crontab_policy;
mod foo;
mod key;
mod metadata;
mod resource;
mod structural;

pub use crontab::{
    CRONTABS, ConcurrencyPolicy, CronTab, CronTabSpec, CronTabStatus, DstPolicyName, JobNameFormat, JobReference,
    RUN_NOW,
};
pub use crontab_policy::{CRONTAB_POLICIES, CronTabDefaults, CronTabLimits, CronTabPolicy, CronTabPolicySpec};
pub use foo::{FOOS, Foo, FooSpec, FooStatus};
pub use key::ObjectKey;
pub use metadata::{AnnotatedMetadata, Metadata, OwnerReference, null_as_default};
pub use resource::{CRDS, Resource, Scope};
