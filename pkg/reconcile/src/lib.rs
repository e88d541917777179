//! The plug: what a controller is, and everything that it then need not do itself.
//!
//! A controller is a [`Descriptor`] and, mostly, a [`Reconciler`]: `observe` reads caches, `decide` returns a [`Plan`]. Both are
//! sync. The rest is here: workers on a queue ([`Keyed`]), and one applier that turns effects into requests, with preconditions,
//! field manager, time limits, events, metrics and a dry run.
//!
//! Architecture Invariant: of all that a keyed controller does, only the applier sends mutating requests, and all of them pass the
//! client's fence.

mod apply;
mod clock;
mod descriptor;
mod events;
mod instruments;
mod intake;
mod keyed;
mod metrics;
mod plan;
mod request;
#[cfg(test)]
mod scripted;
mod shutdown;
mod surface;
mod worker;

pub use apply::{Applied, Applier, EffectError};
pub use clock::{Clock, SystemClock};
pub use descriptor::{BuildError, Controller, Crash, Descriptor, Rule, Setup, Shared, Vital, Vitals};
pub use events::{EventWriter, Events};
pub use instruments::Instruments;
pub use keyed::Keyed;
pub use metrics::Metrics;
pub use plan::{Effect, Next, Note, NoteType, Object, Plan, Propagation, Target};
pub use shutdown::Shutdown;
pub use surface::{Condition, Finding, Inspect, NotWritten, Notebook, Page, Query, Shown};
pub use worker::Reconciler;
