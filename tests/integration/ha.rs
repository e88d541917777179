//! Several replicas on a real apiserver, under faults. An audit checker reads the apiserver's audit
//! log and verifies every write.
//!
//! Each test repeats its fault for a few rounds; the environment variable `ROUNDS`, which
//! `make chaos` sets, overrides how many.

// Clippy allows panics only in modules with this attribute.
#[cfg(test)]
mod audit_checker;
mod audit_log;
mod audit_tail;
mod crash;
mod environment;
mod handover;
mod late;
mod load;
mod outage;
mod partition;
mod peer;
mod slow;
