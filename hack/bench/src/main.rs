//! The program behind `make bench`: measures the controllers, kube-controller-manager and a bare
//! client, each on a local etcd and kube-apiserver.
//!
//!   portreeve-bench DAEMON [--rounds=3] [--only=ROW,...] [--quiet=5m] [--output=BENCHMARKS.md]
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
mod graph;
mod machine;
mod namespaces;
mod objects;
mod options;
mod parts;
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
    let options = Options::parse();
    let outcome = match options.fill {
        Some(subject) => graph::fill(subject, &options),
        None => bench::run(options).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
