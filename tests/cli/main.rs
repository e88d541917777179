//! Tests of the executable from outside: command line, config file, manifests, log, endpoints,
//! limits, signals and exit codes.

mod blocked_stderr;
mod config;
#[expect(dead_code, reason = "the integration tests use the rest")]
#[path = "../fixtures/mod.rs"]
mod fixtures;
mod logs;
mod manifests;
mod open_files;
mod serving;
mod signals;
mod usage;
