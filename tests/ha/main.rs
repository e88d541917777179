//! Several replicas on a real apiserver: faults, and a judge who reads the audit log.
//!
//! Each fault is played a few rounds; `ROUNDS` of the environment, which `make chaos` sets, says how many. What is measured is
//! printed.

mod audit;
mod caught;
mod crash;
mod facts;
mod figures;
mod handover;
mod late;
mod load;
mod outage;
mod partition;
mod peer;
mod race;
mod skew;
mod stage;
#[expect(dead_code, reason = "the integration tests use the rest")]
#[path = "../support/mod.rs"]
mod support;
mod tail;
