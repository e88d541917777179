//! The apiserver's audit log, and checks of the writes in it.
//!
//! The [`AuditChecker`] decides, for each write of a replica, whether its sender held the Lease at
//! that moment. "At that moment" is an order, not a time. One etcd counts every change of every
//! object, including the Lease, in its revisions, and a stored object carries the revision of its
//! change. So a write of revision r is valid if the last change of the Lease before r names its
//! sender. Decisions use no clock; timestamps serve for measurements only.
//!
//! The checks in [`effects`] need no Lease: no object may be created twice, and no deletion may
//! lack preconditions.
//!
//! Only `log.rs` reads files. To all other modules a log is a text or a list of events, and a
//! report is a value. `ha/audit_log.rs` verifies on the real server the assumptions about the log,
//! and `ha/audit_checker.rs` tests the checks.

mod bounds;
mod checker;
pub(crate) mod effects;
pub(crate) mod event;
mod log;
pub(crate) mod policy;
pub(crate) mod report;
mod request;
pub(crate) mod terms;

pub(crate) use checker::{AuditChecker, GuardedLease};
pub(crate) use event::Event;
pub(crate) use log::AuditLog;

/// A count of etcd's changes.
pub(crate) type Revision = u64;
