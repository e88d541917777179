//! The program behind `make run`: starts a control plane and the daemon with every controller,
//! serves both versions of CronTab, applies the samples, deletes a namespace, and runs until
//! Ctrl-C.
//!
//!   portreeve-run DAEMON SAMPLES... [DAEMON-FLAG...]
//!
//! DAEMON is the daemon's binary, beside which the kubectl plugin is. SAMPLES are folders of YAML
//! files. Every process that this program starts ends with it, and its files are removed, even if
//! this program is killed.

mod conversion;
mod namespace;
mod samples;

use std::env;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use portreeve_testing::{ControlPlane, Process, Signal, free_port};
use serde_json::Value;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Instant, interval_at};

use crate::conversion::ConversionWebhook;

/// The preferred port, which is that of kube-controller-manager.
const SECURE_PORT: u16 = 10257;
/// How long the daemon may take to stop. Longer than its `--controller-shutdown-timeout`.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How often a running step prints the time that it has taken.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

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

/// The command line.
struct Arguments {
    daemon: PathBuf,
    plugin: PathBuf,
    /// The folders of samples.
    samples: Vec<PathBuf>,
    /// Flags for the daemon.
    flags: Vec<String>,
}

impl Arguments {
    fn parse() -> Result<Self> {
        let args: Vec<_> = env::args_os().skip(1).collect();
        let is_flag = |arg: &OsString| arg.as_encoded_bytes().starts_with(b"-");
        let (paths, flags) = args.split_at(args.iter().position(is_flag).unwrap_or(args.len()));
        let Some((daemon, samples)) = paths.split_first().filter(|(_, samples)| !samples.is_empty()) else {
            bail!("usage: portreeve-run DAEMON SAMPLES... [DAEMON-FLAG...]");
        };
        let daemon = PathBuf::from(daemon);
        let plugin = daemon.with_file_name("kubectl-portreeve");
        for program in [&daemon, &plugin] {
            ensure!(
                program.is_file(),
                "found no {}: run `hack/build portreeve kubectl-portreeve`",
                program.display()
            );
        }
        let flags = flags.iter().cloned().map(OsString::into_string);
        let flags = flags.collect::<Result<_, _>>();
        Ok(Self {
            daemon,
            plugin,
            samples: samples.iter().map(PathBuf::from).collect(),
            flags: flags.map_err(|flag| anyhow!("the flag {} is not text", flag.display()))?,
        })
    }
}

async fn run() -> Result<()> {
    let Arguments {
        daemon,
        plugin,
        samples,
        flags,
    } = Arguments::parse()?;
    let samples = samples::read(samples.iter().map(|folder| &**folder))?;
    let controllers = all_controllers(&daemon)?;
    let mut interrupt = Interrupt::listen()?;

    let builder = ControlPlane::builder().on_progress(|step| println!("{step}"));
    let plane = tokio::select! {
        plane = with_progress("starting the control plane", builder.start()) => plane?,
        () = interrupt.received() => return Ok(()),
    };
    let port = secure_port()?;
    let webhook = ConversionWebhook::new(&plane)?;
    let flags = [
        &[format!("--controllers={controllers}")],
        &webhook.daemon_flags()[..],
        &flags,
    ]
    .concat();
    let process = start_daemon(&daemon, &plane, port, &flags)?;
    let described = async {
        let enabled = with_progress("serving v2 of CronTab", webhook.enable(&plugin, &plane));
        match enabled.await {
            Ok(()) => apply_and_describe(&plane, port, &samples, &controllers).await,
            Err(error) => error,
        }
    };
    tokio::select! {
        ended = process.wait(Duration::MAX) => bail!("the daemon exited unexpectedly with {}", ended?),
        failure = described => return Err(failure),
        () = interrupt.received() => println!("\nStopping the daemon; press Ctrl-C again to kill it."),
    }
    process.signal(Signal::TERM)?;
    let status = tokio::select! {
        status = with_progress("stopping the daemon", process.wait(STOP_LIMIT)) => status?,
        () = interrupt.received() => bail!("the daemon was killed before it had stopped"),
    };
    ensure!(status.success(), "the daemon stopped with {status}");
    drop(process);
    drop(plane);
    println!("Stopped the daemon and removed the control plane with its data.");
    Ok(())
}

/// Runs `work` and prints every five seconds how long it has been running.
async fn with_progress<T>(what: &str, work: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let mut ticks = interval_at(started + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
    let mut work = pin!(work);
    loop {
        tokio::select! {
            outcome = &mut work => return outcome,
            _ = ticks.tick() => println!("  {what}: {} s", started.elapsed().as_secs()),
        }
    }
}

/// Returns the names of all controllers, separated by commas. This includes those that are off by
/// default, because no other controller manager runs here.
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

/// Starts the daemon, which logs to this program's stderr.
fn start_daemon(binary: &Path, plane: &ControlPlane, port: u16, flags: &[String]) -> Result<Process> {
    let mut args = vec![
        format!("--kubeconfig={}", plane.kubeconfig().display()),
        "--install-crds".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics,/debug/*".to_owned(),
    ];
    args.extend_from_slice(flags);
    Process::spawn_attached("portreeve", binary, &args, &[])
}

/// Applies the samples, deletes a namespace if one of these controllers empties it, and prints
/// commands to try. Returns only on failure.
async fn apply_and_describe(
    plane: &ControlPlane,
    port: u16,
    samples: &[samples::Sample],
    controllers: &str,
) -> anyhow::Error {
    let applied = async {
        let client = plane.client()?;
        for (number, sample) in (1..).zip(samples) {
            with_progress(&format!("applying {sample}"), sample.apply(&client)).await?;
            let total = samples.len();
            match sample.comment() {
                "" => println!("Applied {sample} ({number} of {total})."),
                comment => println!("Applied {sample} ({number} of {total}): {comment}"),
            }
        }
        if controllers.split(',').any(|name| name == namespace::CONTROLLER) {
            let deleted = namespace::create_and_delete(&client);
            with_progress("deleting a namespace", deleted).await?;
        }
        anyhow::Ok(())
    };
    if let Err(error) = applied.await {
        return error;
    }
    let kubeconfig = plane.kubeconfig().display();
    println!(
        "
All samples are applied; the log shows how the controllers reconcile them.

  kubeconfig  {kubeconfig}
  metrics     https://127.0.0.1:{port}/metrics

Try next:
  curl -k 'https://127.0.0.1:{port}/readyz?verbose'
  curl -k https://127.0.0.1:{port}/metrics

And with kubectl, if you have it:
  export KUBECONFIG={kubeconfig}
  kubectl get foos,deployments --all-namespaces
  kubectl get crontabs,cronjobs,jobs --all-namespaces
  kubectl get crontabs.v1.stable.example.com,crontabs.v2.stable.example.com
  kubectl get events --all-namespaces
  kubectl delete deployments --all        # foo-controller recreates them
  kubectl create namespace a && kubectl delete namespace a
  kubectl edit foos
  kubectl annotate --overwrite crontabs example-crontab stable.example.com/run-now=$RANDOM

Ctrl-C stops the daemon and removes the control plane."
    );
    std::future::pending().await
}

/// Returns [`SECURE_PORT`] if it is free, and any free port otherwise.
fn secure_port() -> Result<u16> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, SECURE_PORT)) {
        Ok(_) => Ok(SECURE_PORT),
        Err(_) => free_port(),
    }
}

/// SIGINT and SIGTERM to this program.
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

    /// Waits for one of the signals.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => (),
            _ = self.terminate.recv() => (),
        }
    }
}
