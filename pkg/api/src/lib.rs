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
mod lazy_json;
mod metadata;
mod part_of;
mod resource;
mod structural;

pub use crontab::{
    CRONTABS, CRONTABS_V2, ConcurrencyPolicy, CronTab, CronTabSpec, CronTabStatus, CronTabV2Spec, CronTabV2Status,
    DEFAULT_SCHEDULE, DstPolicyName, JOB_SCHEDULE, JobNameFormat, JobReference, MAX_SCHEDULE_NAME, MAX_SCHEDULES,
    NamedSchedule, REPLACED_RUNS, RUN_NOW, RunPolicy, ScheduleStatus, V2_FIELDS,
};
pub use crontab_policy::{CRONTAB_POLICIES, CronTabDefaults, CronTabLimits, CronTabPolicy, CronTabPolicySpec};
pub use foo::{FOOS, Foo, FooSpec, FooStatus};
pub use key::ObjectKey;
pub use lazy_json::{LazyObject, LazyValue};
pub use metadata::{AnnotatedMetadata, Metadata, OwnerReference, null_as_default};
pub use part_of::{PART_OF, PROGRAM};
pub use resource::{CRDS, Resource, Scope};
