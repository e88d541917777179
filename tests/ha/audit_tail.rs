//! What a replica writes, as it writes it: the audit log as it grows.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use portreeve_testing::eventually;
use serde_json::Value;

use crate::{fixtures::HaEnvironment, support::LIMIT};

/// The log from one moment on.
pub(crate) struct AuditTail {
    read: u64,
}

impl AuditTail {
    /// From now on.
    pub(crate) fn of(environment: &HaEnvironment) -> Result<Self> {
        let log = environment.plane.audit_log().context("it has an audit log")?;
        let read = log.metadata().context("failed to size the audit log")?.len();
        Ok(Self { read })
    }

    /// Waits until a pod has written something, Leases and Events aside, and returns when the request came.
    pub(crate) async fn wait_for_write(&self, environment: &HaEnvironment, pod: &str) -> Result<Timestamp> {
        let mark = environment.audit_marker(pod);
        eventually(LIMIT, &format!("{pod} to write something"), || async {
            let log = environment.plane.audit_log().context("it has an audit log")?;
            let mut file = File::open(log)?;
            let mut fresh = String::new();
            file.seek(SeekFrom::Start(self.read))?;
            file.read_to_string(&mut fresh)?;
            // The last one may be half written.
            let lines = fresh.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let mut acts = lines.filter(|line| line.contains(&mark)).filter_map(act);
            acts.next().context("nothing yet")
        })
        .await
    }
}

/// When a write came, if this line says that it was done.
fn act(line: &str) -> Option<Timestamp> {
    let event: Value = serde_json::from_str(line).ok()?;
    let is_done = event["stage"] == "ResponseComplete" && event["responseStatus"]["code"].as_u64()? < 300;
    let resource = event["objectRef"]["resource"].as_str()?;
    let counts = is_done && !["leases", "events"].contains(&resource);
    counts
        .then(|| event["requestReceivedTimestamp"].as_str()?.parse().ok())
        .flatten()
}
