//! The program behind `make bench`: measures the controllers, kube-controller-manager and a bare
//! client, each on a local etcd and kube-apiserver.
//!
//!   portreeve-bench DAEMON [--rounds=3] [--only=ROW,...] [--quiet=5m] [--output=BENCHMARKS.md]
//!
//! DAEMON is the daemon's binary. Every process that this program starts ends with it, even when it
//! is killed.
//!
//! | modules | purpose |
//! |---|---|
//! | `plan` | the order of the measurements |
//! | `due`, `idle`, `failover`, `standby` | measurements of schedules |
//! | `cascade`, `load`, `million` | measurements of garbage collection |
//! | `burst`, `rounds`, `fleet` | measurements of Foos |
//! | `shell` | measurements of the whole process |
//! | `search` | the criterion benchmarks of the crates |
//! | `report` | the report in Markdown |

mod audit;
mod bench;
mod burst;
mod cascade;
mod completion;
mod controller;
mod due;
mod failover;
mod family;
mod fleet;
mod foos;
mod idle;
mod lease;
mod legend;
mod limits;
mod load;
mod machine;
mod methods;
mod million;
mod objects;
mod options;
mod peers;
mod plan;
mod progress;
mod quiesce;
mod replicas;
mod report;
mod resource_usage;
mod rounds;
mod rows;
mod search;
mod shell;
mod simulated_cluster;
mod standby;
mod statistics;
mod targets;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::options::Options;
use crate::rows::Row;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let outcome = match options.fill {
        Some(subject) => million::fill(subject, options.count(Row::Graph)),
        None => measure(options).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures until everything is done or a signal arrives.
async fn measure(options: Options) -> Result<()> {
    let listen = |kind| signal(kind).context("failed to listen for signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let stopped = async {
        tokio::select! {
            _ = interrupt.recv() => "interrupted",
            _ = terminate.recv() => "terminated",
        }
    };
    bench::run(options, stopped).await
}
