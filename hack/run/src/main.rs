//! What `make run` runs: a control plane, the daemon with every controller, and the samples, until Ctrl-C.
//!
//!   portreeve-run DAEMON SAMPLES [DAEMON-FLAG...]
//!
//! DAEMON is the daemon's binary, SAMPLES a folder of YAML. All of it is ended and removed in the end, even when this is killed.

mod samples;

use std::env;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use portreeve_testing::{ControlPlane, Process, Signal, free_port};
use serde_json::Value;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// The port of Kubernetes' own controller manager, which people know.
const SECURE_PORT: u16 = 10257;
/// Longer than the daemon gives its reconciles to end.
const STOP_LIMIT: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let mut args = env::args_os().skip(1);
    let (Some(daemon), Some(samples)) = (args.next().map(PathBuf::from), args.next().map(PathBuf::from)) else {
        bail!("usage: portreeve-run DAEMON SAMPLES [DAEMON-FLAG...]");
    };
    let flags = args.map(OsString::into_string).collect::<Result<Vec<_>, _>>();
    let flags = flags.map_err(|flag| anyhow!("the flag {} is not text", flag.display()))?;
    ensure!(
        daemon.is_file(),
        "there is no daemon at {}: run `cargo build --release -p portreeve`",
        daemon.display()
    );
    let samples = samples::read(&samples)?;
    let controllers = all_controllers(&daemon)?;
    let mut interrupt = Interrupt::listen()?;

    println!("Starting etcd and kube-apiserver.");
    let plane = tokio::select! {
        plane = ControlPlane::start() => plane?,
        () = interrupt.received() => return Ok(()),
    };
    let port = secure_port()?;
    let daemon = start_daemon(&daemon, &plane, port, &controllers, &flags)?;
    tokio::select! {
        ended = daemon.wait(Duration::MAX) => bail!("the daemon ended by itself with {}", ended?),
        failure = show(&plane, port, &samples) => return Err(failure),
        () = interrupt.received() => println!("\nStopping the daemon; once more to kill it."),
    }
    daemon.signal(Signal::TERM)?;
    let status = tokio::select! {
        status = daemon.wait(STOP_LIMIT) => status?,
        () = interrupt.received() => bail!("the daemon was killed before it had stopped"),
    };
    ensure!(status.success(), "the daemon stopped with {status}");
    drop(daemon);
    drop(plane);
    println!("Stopped; the control plane and its data are removed.");
    Ok(())
}

/// The names of all controllers, also of those that are off by default: there is no other controller manager here.
fn all_controllers(daemon: &Path) -> Result<String> {
    let listed = Command::new(daemon)
        .args(["--list-controllers", "--output=json"])
        .output()
        .with_context(|| format!("failed to run {}", daemon.display()))?;
    let known: Vec<Value> = serde_json::from_slice(&listed.stdout)
        .with_context(|| format!("{} --list-controllers printed no list", daemon.display()))?;
    let names: Vec<_> = known.iter().filter_map(|known| known["name"].as_str()).collect();
    Ok(names.join(","))
}

/// Attached: its log is what there is to see.
fn start_daemon(
    binary: &Path,
    plane: &ControlPlane,
    port: u16,
    controllers: &str,
    flags: &[String],
) -> Result<Process> {
    let mut args = vec![
        format!("--kubeconfig={}", plane.kubeconfig().display()),
        format!("--controllers={controllers}"),
        "--install-crds".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics,/debug/*".to_owned(),
    ];
    args.extend_from_slice(flags);
    Process::spawn_attached("portreeve", binary, &args, &[])
}

/// Applies the samples and says what there is to see. Returns only when that fails.
async fn show(plane: &ControlPlane, port: u16, samples: &[samples::Sample]) -> anyhow::Error {
    let applied = async {
        let client = plane.client()?;
        for sample in samples {
            sample.apply(&client).await?;
            println!("Applied {sample}.");
        }
        anyhow::Ok(())
    };
    if let Err(error) = applied.await {
        return error;
    }
    let kubeconfig = plane.kubeconfig().display();
    println!(
        "
Every sample is applied; the log shows what becomes of them.

  kubeconfig  {kubeconfig}
  metrics     https://127.0.0.1:{port}/metrics

Try next:
  curl -k 'https://127.0.0.1:{port}/readyz?verbose'
  curl -k https://127.0.0.1:{port}/metrics

And with kubectl, if you have it:
  export KUBECONFIG={kubeconfig}
  kubectl get foos,deployments --all-namespaces
  kubectl get crontabs,cronjobs,jobs --all-namespaces
  kubectl get events --all-namespaces
  kubectl delete deployments --all        # each Foo brings its own back
  kubectl edit foos
  kubectl annotate --overwrite crontabs example-crontab stable.example.com/run-now=$RANDOM

Ctrl-C stops everything and removes it."
    );
    std::future::pending().await
}

/// The usual port when it is free.
fn secure_port() -> Result<u16> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, SECURE_PORT)) {
        Ok(_) => Ok(SECURE_PORT),
        Err(_) => free_port(),
    }
}

/// Ctrl-C in a terminal, or SIGTERM from whoever runs this.
struct Interrupt {
    interrupt: SignalStream,
    terminate: SignalStream,
}

impl Interrupt {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }
}
