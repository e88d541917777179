//! The reasons why an election fails its health checks.
//!
//! Architecture Invariant: pure.

use std::{sync::Arc, time::Duration};

use crate::access::LeaseAccessError;

/// The reason why a candidate is not healthy, or not ready to lead.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum HealthError {
    /// The candidate cannot read or write its Lease.
    #[error("cannot lead with Lease {lease}: {reason}")]
    NoAccess {
        /// The namespace and the name of the Lease.
        lease: Arc<str>,
        /// What it cannot do.
        reason: LeaseAccessError,
    },
    /// A leader has not renewed for too long, and still counts as the leader.
    #[error(
        "failed election to renew leadership on lease {lease}: the renew deadline passed {} s ago", .overdue.as_secs()
    )]
    NotRenewed {
        /// The namespace and the name of the Lease.
        lease: Arc<str>,
        /// The time since the renew deadline.
        overdue: Duration,
    },
    /// The thread of the elections hangs.
    #[error(
        "the leader election thread has run no task for {} s, longer than {limit:?}; restart the process",
        .silence.as_secs()
    )]
    Stuck {
        /// The time since its last task.
        silence: Duration,
        /// The longest time that is allowed.
        limit: Duration,
    },
}
