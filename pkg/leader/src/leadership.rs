//! The state that a candidate shares with the handle to its election.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{LeaseFence, access::LeaseAccess, boot_clock, guard::LeaseCache, heartbeat::Heartbeat};

/// The state of an election in this process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LeadershipState {
    /// Another process leads, or no process does yet.
    Standby {
        /// The last known holder of the Lease.
        holder: Option<String>,
    },
    /// This process leads.
    Leading,
    /// This process lost the Lease or failed to compete, and never leads again. The text says why.
    Lost(String),
    /// The candidacy has ended, and this process does not hold the Lease.
    Released,
}

/// A command to a candidate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CandidateCommand {
    /// Watch the Lease without acquiring it yet.
    Hold,
    Run,
    /// End, and release the Lease if it is held.
    Release,
    /// End without releasing the Lease, which then expires.
    GiveUp,
}

impl CandidateCommand {
    pub(crate) fn ends(self) -> bool {
        matches!(self, Self::Release | Self::GiveUp)
    }
}

/// The state that a candidate and its handle share.
pub(crate) struct Shared {
    pub(crate) fence: LeaseFence,
    pub(crate) leadership: watch::Sender<LeadershipState>,
    pub(crate) commands: watch::Sender<CandidateCommand>,
    pub(crate) cache: LeaseCache,
    pub(crate) access: Mutex<LeaseAccess>,
    /// The heartbeat of the elections' thread.
    pub(crate) thread: Heartbeat,
}

impl Shared {
    /// Returns the time since the start of the last successful renewal; `None` unless this process
    /// leads.
    pub(crate) fn renewal_age(&self) -> Option<Duration> {
        let leads = *self.leadership.borrow() == LeadershipState::Leading;
        leads.then(|| self.fence.renewal_age(boot_clock::now())).flatten()
    }
}
