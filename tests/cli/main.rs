//! Tests of the executable from outside: command line, config file, manifests, log, endpoints,
//! signals and exit codes.

mod config;
mod logs;
mod manifests;
mod serving;
mod signals;
#[expect(dead_code, reason = "the integration tests use the rest")]
#[path = "../support/mod.rs"]
mod support;
mod usage;
