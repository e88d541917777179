//! The program behind `make bench`: measures the controllers, kube-controller-manager and a bare
//! client, each on a local etcd and kube-apiserver.
//!
//!   portreeve-bench DAEMON [--rounds=N] [--only=ROW,...] [--output=BENCHMARKS.md]
//!
//! DAEMON is the daemon's binary. Every process that this program starts ends with it, even when it
//! is killed.

mod admission;
mod audit;
mod bench;
mod connections;
mod controller;
mod conversion;
mod failover;
mod foos;
mod garbage;
mod machine;
mod namespaces;
mod objects;
mod options;
mod report;
mod run;
mod schedules;
mod statistics;
mod tables;
mod tenants;
mod testenv;
mod usage;
mod watch;
mod webhook;

use std::process::ExitCode;

use clap::Parser;

use crate::options::Options;

#[tokio::main]
async fn main() -> ExitCode {
    match bench::run(Options::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
