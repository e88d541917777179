//! Several replicas on a real apiserver: faults, and a judge who reads the audit log.
//!
//! Each fault is played a few rounds; `ROUNDS` of the environment, which `make chaos` sets, says how many. What is measured is
//! printed.

mod audit;
mod audit_log;
mod audit_tail;
mod crash;
mod duration_summary;
mod fixtures;
mod handover;
mod late;
mod load;
mod outage;
mod partition;
mod peer;
mod race;
mod skew;
#[expect(dead_code, reason = "the integration tests use the rest")]
#[path = "../support/mod.rs"]
mod support;
mod unelected_writer;
