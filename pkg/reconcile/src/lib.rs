//! The controller framework: what a controller provides, and what the framework does for it.
//!
//! A controller consists of a [`Descriptor`] and usually a [`Reconciler`]. Its `observe` method
//! collects what a decision depends on, and its `decide` method returns a [`Plan`]; both are sync.
//! This crate provides the rest. [`KeyedController`] runs workers on a queue. The [`Applier`] turns
//! effects into requests with preconditions, field manager and timeouts, and handles events,
//! metrics and dry runs.
//!
//! # Failure pacing
//!
//! Five layers slow down what fails. Each limits what the others do not:
//!
//! - The backoff of a key (`portreeve_workqueue`) limits how often one object is retried. Without
//!   it, one broken object keeps a worker busy.
//! - The retry budget of a controller, which namespaces share fairly (`RetryBudget`), limits how
//!   many retries all objects have together. Without it, a thousand objects that a quota rejects
//!   use up the client's rate, and one tenant's delay everybody else's.
//! - Charges for reports limit the requests of one failed run: a status patch and an event cost a
//!   token each. Without them, a failure causes three requests for one token.
//! - The end of an outage ends the backoffs that the outage has caused (`retry_after_outages`).
//!   Without it, the first write afterwards comes up to 30 s late.
//! - Own writes (`runner/own_writes.rs`): the watch event of the own status patch starts no run.
//!   Without this, a report is followed at once by a retry without backoff and token, which may
//!   report again.
//!
//! A report has two costs: its request, and the run that its watch event would start. So charges
//! cannot replace the suppression of own writes: that run would not wait for a token, because an
//! event from the watch needs none.
//!
//! # Events
//!
//! One writer sends events in order and best-effort. It waits until fewer than 50 events arrive in
//! a second, but at most 30 s and not with more than 10,000 waiting events, so that events do not
//! slow down the burst that causes them. Up to 20,000 events may wait. A repetition of one of the
//! last 4,096 events becomes a series.
//!
//! Architecture Invariant: only the applier sends a keyed controller's mutating requests, and all
//! of them pass the client's fence.

mod activity;
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
mod root_ca;
mod runner;
#[cfg(test)]
mod scripted;
mod shutdown;

pub use activity::{Activity, ActivityChecker};
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
pub use root_ca::{RootCa, RootCaError};
pub use runner::KeyedController;
pub use shutdown::Shutdown;
