//! The plug: what a controller is, and everything that it then need not do itself.
//!
//! A controller is a [`Descriptor`] and, mostly, a [`Reconciler`]: `observe` reads caches, `decide` returns a [`Plan`]. Both are
//! sync. The rest is here: workers on a queue ([`KeyedController`]), and one applier that turns effects into requests, with preconditions,
//! field manager, time limits, events, metrics and a dry run.
//!
//! Architecture Invariant: of all that a keyed controller does, only the applier sends mutating requests, and all of them pass the
//! client's fence.

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
