//! The judge of every run with several replicas: reads the apiserver's audit log and finds, for each write of a replica, whether its
//! sender held the Lease at that moment.
//!
//! "At that moment" is an order, not a time. The log is of one etcd, whose revisions count every change of every object, the Lease's
//! among them, and an object that was stored carries the revision at which it was. So a write of revision r was legal if the last
//! change of the Lease before r names its sender. No clock has a part in that; timestamps are used to measure, never to judge.
//!
//! Architecture Invariant: no IO. A log is a text, and a report is a value. `audit_log.rs` shows on the real server that the log is what
//! this takes it for.

mod bounds;
mod checker;
mod event;
mod report;
mod request;
mod terms;
#[cfg(test)]
mod tests;

pub(crate) use checker::{AuditChecker, GuardedLease};
pub(crate) use report::{Report, WriteCounts};
pub(crate) use terms::{Term, pod};

/// A count of etcd's changes.
pub(crate) type Revision = u64;

/// What the apiserver has to log: mutating requests with their answers, and when each was received. Everybody's, because the revision
/// of a write that changed nothing is somebody else's.
pub(crate) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitManagedFields": true,
  "rules": [
    {"level": "Metadata", "verbs": ["create", "update", "patch"], "resources": [
      {"group": "", "resources": ["events"]}, {"group": "events.k8s.io", "resources": ["events"]}
    ]},
    {"level": "RequestResponse", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
    {"level": "None"}
  ]
}"#;
