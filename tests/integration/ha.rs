//! Several replicas on a real apiserver, under faults. An audit checker reads the apiserver's audit
//! log and verifies every write.
//!
//! Each test repeats its fault for a few rounds; the environment variable `ROUNDS`, which
//! `make chaos` sets, overrides how many. The tests print the times that they measure.

// Clippy allows panics only in modules with this attribute.
#[cfg(test)]
mod audit_checker;
mod audit_log;
mod audit_tail;
mod crash;
mod duration_summary;
mod environment;
mod handover;
mod late;
mod load;
mod outage;
mod partition;
mod peer;
mod race;
mod skew;
mod slow;
mod unelected_writer;
