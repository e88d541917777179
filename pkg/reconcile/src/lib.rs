//! The controller framework: what a controller provides, and what the framework does for it.
//!
//! A controller consists of a [`Descriptor`] and usually a [`Reconciler`]. Its `observe` method
//! reads caches and its `decide` method returns a [`Plan`]; both are sync. This crate provides the
//! rest. [`KeyedController`] runs workers on a queue. The [`Applier`] turns effects into requests
//! with preconditions, field manager and timeouts, and handles events, metrics and dry runs.
//!
//! Architecture Invariant: only the applier sends a keyed controller's mutating requests, and all
//! of them pass the client's fence.

mod apply;
mod clock;
mod controller_metrics;
mod debug;
mod descriptor;
mod enqueue_gate;
mod events;
mod keyed;
mod metrics;
mod plan;
mod request;
#[cfg(test)]
mod scripted;
mod shutdown;
mod worker;

pub use apply::{Applied, Applier, EffectError};
pub use clock::{Clock, SystemClock};
pub use controller_metrics::ControllerMetrics;
pub use debug::{
    AnnotateError, DebugPage, DebugQuery, DebugResponse, LeaseAnnotations, ReadinessCheck, ReadinessChecker,
    ReadinessStatus,
};
pub use descriptor::{
    BuildError, Controller, ControllerContext, ControllerFailure, Descriptor, QueueHealth, QueueHealthChecker, Rule,
    Setup,
};
pub use events::{EventWriter, Events};
pub use keyed::KeyedController;
pub use metrics::Metrics;
pub use plan::{Effect, EventContent, EventSeverity, Next, Object, Plan, Propagation, Target};
pub use shutdown::Shutdown;
pub use worker::Reconciler;
