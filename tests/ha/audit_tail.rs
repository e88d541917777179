//! Follows the audit log while it grows, to wait for the writes of a replica.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use portreeve_testing::eventually;
use serde_json::Value;

use crate::{environment::HaEnvironment, fixtures::LIMIT};

/// The part of the audit log after an offset.
pub(crate) struct AuditTail {
    offset: u64,
}

impl AuditTail {
    /// Starts at the present end of the log.
    pub(crate) fn of(environment: &HaEnvironment) -> Result<Self> {
        let log = environment
            .plane
            .audit_log()
            .context("the control plane has no audit log")?;
        let offset = log.metadata().context("failed to size the audit log")?.len();
        Ok(Self { offset })
    }

    /// Waits until a pod has written an object other than a Lease or an Event, and returns when the
    /// apiserver received the request.
    pub(crate) async fn wait_for_write(&self, environment: &HaEnvironment, pod: &str) -> Result<Timestamp> {
        let marker = environment.audit_marker(pod);
        eventually(LIMIT, &format!("a write of {pod}"), || async {
            let log = environment
                .plane
                .audit_log()
                .context("the control plane has no audit log")?;
            let mut file = File::open(log)?;
            let mut appended = String::new();
            file.seek(SeekFrom::Start(self.offset))?;
            file.read_to_string(&mut appended)?;
            // The last line may be incomplete.
            let lines = appended.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let mut writes = lines
                .filter(|line| line.contains(&marker))
                .filter_map(write_received_at);
            writes.next().context("no write yet")
        })
        .await
    }
}

/// Returns when a write was received, if this line reports that it succeeded.
fn write_received_at(line: &str) -> Option<Timestamp> {
    let event: Value = serde_json::from_str(line).ok()?;
    let is_done = event["stage"] == "ResponseComplete" && event["responseStatus"]["code"].as_u64()? < 300;
    let resource = event["objectRef"]["resource"].as_str()?;
    let is_counted = is_done && !["leases", "events"].contains(&resource);
    is_counted
        .then(|| event["requestReceivedTimestamp"].as_str()?.parse().ok())
        .flatten()
}
