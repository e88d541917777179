//! Leader election: of several replicas one acts, and a replica that does not know that it leads writes nothing.
//!
//! [`Elections::start`] runs one candidate for each Lease, on a thread and with connections of their own, so that nothing that a controller
//! does can keep a renewal waiting. Each [`Election`] tells how it stands, and its [`LeaseFence`] stands before every write.
//!
//! `elector` decides (pure), `guard` makes `kube-leader-election` safe, `candidate` performs, `annotations` keeps what else the Lease says.
//!
//! Architecture Invariant: a candidate that has lost its Lease never leads again in this process. The Lease is released only by
//! [`Election::release`], which is for those who write no more.

mod annotations;
mod args;
mod boot_clock;
mod candidate;
mod election;
pub mod elector;
mod fence;
mod guard;
mod metrics;
#[cfg(test)]
mod simulation;
mod watch;

use std::sync::Arc;

use jiff::Timestamp;

pub use annotations::LeaseSnapshot;
pub use args::{Args, Error as ArgsError, Membership, identity};
pub use election::{Election, Elections, Error, LeadershipState, Settings};
pub use fence::LeaseFence;
pub use metrics::Metrics;

/// The time of day, for what is written into a Lease. Nothing is decided by it.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;
