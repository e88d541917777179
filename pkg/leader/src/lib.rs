//! Leader election: one of several replicas acts, and a replica that does not hold the Lease cannot
//! write.
//!
//! [`Elections::start`] runs one candidate per Lease. The candidates have their own thread and
//! their own connections, so a controller can never delay a renewal. Each [`Election`] reports its
//! [`LeadershipState`], and its [`LeaseFence`] checks every write.
//!
//! The `elector` module decides (pure), `guard` makes `kube-leader-election` safe, `candidate`
//! performs the actions, `annotations` tracks the rest of the Lease, and `access` decides whether a
//! candidate could lead.
//!
//! A [`Heartbeat`] shows that the runtime of the controllers runs tasks. Without it, the candidates
//! give up.
//!
//! Architecture Invariant: a candidate that has lost its Lease never leads again in this process.
//! Only [`Election::release`] releases a Lease; callers use it once they no longer write.

mod access;
mod annotations;
mod args;
mod boot_clock;
mod candidate;
mod election;
pub mod elector;
mod fence;
mod guard;
mod health;
mod heartbeat;
mod leadership;
mod metrics;
mod review;
mod server_time;
#[cfg(test)]
mod simulation;
mod stall;
mod wall_clock;
mod watch;

pub use access::LeaseAccessError;
pub use args::{Args, Error as ArgsError, Membership, identity};
pub use election::{Election, Elections, Error, Settings};
pub use fence::LeaseFence;
pub use health::HealthError;
pub use heartbeat::Heartbeat;
pub use leadership::LeadershipState;
pub use metrics::Metrics;
pub use wall_clock::WallClock;
