//! The audit checker: reads the apiserver's audit log and decides, for each write of a replica,
//! whether its sender held the Lease at that moment.
//!
//! "At that moment" is an order, not a time. One etcd counts every change of every object,
//! including the Lease, in its revisions, and a stored object carries the revision of its change.
//! So a write of revision r was legal if the last change of the Lease before r names its sender.
//! Decisions use no clock; timestamps serve for measurements only.
//!
//! Architecture Invariant: no I/O. A log is a text, and a report is a value. `audit_log.rs`
//! verifies on the real server the assumptions that this module makes about the log.

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

/// The audit policy: logs mutating requests of all users with their responses, and when each was
/// received. It covers all users because a write that changes nothing returns the revision of
/// another user's write.
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
