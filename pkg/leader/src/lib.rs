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
//! # Decisions
//!
//! - A deleted Lease belongs to its holder for one more lease duration. client-go's candidates take
//!   it at once, so two processes may lead. A candidate that has never seen a holder cannot know of
//!   one, so deploy/ ships the Lease.
//! - Each request has a timeout of half of the renew deadline, but at least one second, as in
//!   client-go. An attempt to acquire has no further limit. A dial outlives its request
//!   (`pkg/client/src/dial.rs`), so that a client on a slow network connects at all.
//! - The period to the next renewal counts from the start of the last write.
//! - A process that holds a Lease waits one retry period longer for each that it holds, so that
//!   other replicas get theirs.
//! - A `Date` later than that of the last renewal by more than the renew deadline suspends writes
//!   (`server_time.rs`). For the next ten minutes only a larger difference counts, so that one
//!   apiserver with a wrong clock does not block writes.
//! - Candidates give up once the controllers' runtime has run no task for the renew deadline
//!   (`stall.rs`). Only the time in which the elections' own thread ran counts.
//! - A renewal uses the newest resourceVersion whose election fields are known, so an annotation
//!   written in between causes no conflict.
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
