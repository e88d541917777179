//! Follows the audit log while it grows, to wait for the writes of a replica.

use anyhow::{Context, Result};
use jiff::Timestamp;
use portreeve_testing::eventually;

use super::environment::HaEnvironment;
use crate::{
    audit::{AuditLog, Event},
    fixtures::LIMIT,
};

/// The part of the audit log after an offset.
pub(crate) struct AuditTail {
    log: AuditLog,
    offset: u64,
}

impl AuditTail {
    /// Starts at the present end of the log.
    pub(crate) fn of(environment: &HaEnvironment) -> Result<Self> {
        let log = AuditLog::of(&environment.plane)?;
        let offset = log.end();
        Ok(Self { log, offset })
    }

    /// Waits until a pod has written an object other than a Lease or an Event, and returns when the
    /// apiserver received the request.
    pub(crate) async fn wait_for_write(&self, environment: &HaEnvironment, pod: &str) -> Result<Timestamp> {
        let sender = environment.sender(pod);
        eventually(LIMIT, &format!("a write of {pod}"), || async {
            let events = self.log.events_containing(pod, self.offset)?;
            let mut writes = events
                .iter()
                .filter(|event| event.user.sender() == sender && is_counted(event));
            let write = writes.next().context("no write yet")?;
            anyhow::Ok(write.request_received_timestamp)
        })
        .await
    }
}

/// Returns whether this is the end of a write that succeeded.
fn is_counted(event: &Event) -> bool {
    event.is_success() && !["leases", "events"].contains(&event.resource())
}
