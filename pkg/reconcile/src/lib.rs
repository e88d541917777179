//! The controller framework: what a controller provides, and what the framework does for it.
//!
//! A controller consists of a [`Descriptor`] and usually a [`Reconciler`]. Its `observe` method
//! reads caches and its `decide` method returns a [`Plan`]; both are sync. This crate provides the
//! rest. [`KeyedController`] runs workers on a queue. The [`Applier`] turns effects into requests
//! with preconditions, field manager and timeouts, and handles events, metrics and dry runs.
//!
//! Architecture Invariant: only the applier sends a keyed controller's mutating requests, and all
//! of them pass the client's fence.

pub mod admission;
mod apply;
mod clock;
mod controller;
mod controller_metrics;
mod debug;
mod descriptor;
mod events;
mod fence_monitor;
mod group_informers;
mod group_lease;
mod metrics;
mod outages;
mod plan;
mod queue_health;
mod readiness;
mod reconcile_span;
mod reconciler;
mod request;
mod runner;
#[cfg(test)]
mod scripted;
mod shutdown;

pub use apply::{Applied, Applier, EffectError};
pub use clock::{Clock, SystemClock};
pub use controller::{BuildError, Context, Controller, ControllerFailure, Registrations, SharedContext};
pub use controller_metrics::{ControllerMetrics, LATENCY_BUCKETS};
pub use debug::{DebugPage, DebugQuery, DebugResponse};
pub use descriptor::{Descriptor, Rule};
pub use events::{EventWriter, Events};
pub use fence_monitor::FenceMonitor;
pub use group_informers::GroupInformers;
pub use group_lease::GroupLease;
pub use metrics::Metrics;
pub use outages::retry_after_outages;
pub use plan::{ABSENT, Effect, EventContent, EventSeverity, Next, Object, Plan, Propagation, Target};
pub use portreeve_client::ServerClock;
pub use queue_health::{QueueHealth, QueueHealthChecker};
pub use readiness::{ReadinessCheck, ReadinessChecker, ReadinessStatus, held_retries_checker};
pub use reconcile_span::reconcile_span;
pub use reconciler::{Reconciler, RequestState};
pub use runner::KeyedController;
pub use shutdown::Shutdown;
