//! The executable as people and supervisors see it: its command line and config file, its manifests, its log, its endpoints, its signals and its
//! exit codes.

mod config;
mod logs;
mod manifests;
mod serving;
mod signals;
#[expect(dead_code, reason = "the integration tests use the rest")]
#[path = "../support/mod.rs"]
mod support;
mod usage;
