//! Follows the audit log while it grows, to wait for the writes of a replica.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use portreeve_testing::eventually;
use serde_json::Value;

use crate::{fixtures::HaEnvironment, support::LIMIT};

/// The audit log from one moment on.
pub(crate) struct AuditTail {
    read: u64,
}

impl AuditTail {
    /// Starts at the present end of the log.
    pub(crate) fn of(environment: &HaEnvironment) -> Result<Self> {
        let log = environment
            .plane
            .audit_log()
            .context("the control plane has no audit log")?;
        let read = log.metadata().context("failed to size the audit log")?.len();
        Ok(Self { read })
    }

    /// Waits until a pod has written an object other than a Lease or an Event, and returns when the
    /// apiserver received the request.
    pub(crate) async fn wait_for_write(&self, environment: &HaEnvironment, pod: &str) -> Result<Timestamp> {
        let mark = environment.audit_marker(pod);
        eventually(LIMIT, &format!("a write of {pod}"), || async {
            let log = environment
                .plane
                .audit_log()
                .context("the control plane has no audit log")?;
            let mut file = File::open(log)?;
            let mut fresh = String::new();
            file.seek(SeekFrom::Start(self.read))?;
            file.read_to_string(&mut fresh)?;
            // The last line may be incomplete.
            let lines = fresh.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let mut acts = lines.filter(|line| line.contains(&mark)).filter_map(act);
            acts.next().context("no write yet")
        })
        .await
    }
}

/// Returns when a write was received, if this line reports that it succeeded.
fn act(line: &str) -> Option<Timestamp> {
    let event: Value = serde_json::from_str(line).ok()?;
    let is_done = event["stage"] == "ResponseComplete" && event["responseStatus"]["code"].as_u64()? < 300;
    let resource = event["objectRef"]["resource"].as_str()?;
    let counts = is_done && !["leases", "events"].contains(&resource);
    counts
        .then(|| event["requestReceivedTimestamp"].as_str()?.parse().ok())
        .flatten()
}
