//! The process of a subject.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use kube::{Client, Config};
use portreeve_testing::{Process, eventually, free_port, server_binary};

use crate::run::Run;
use crate::statistics::Value;
use crate::tables::Subject;
use crate::usage::{self, CpuTime};

/// How long a controller may take from its start to its first reconcile, with 50,000 objects to
/// list on two busy cores.
pub(crate) const START_LIMIT: Duration = Duration::from_mins(2);
/// The name of the Lease that replicas share.
pub(crate) const LEASE: &str = "bench";
/// The feature gate that makes kube-controller-manager release its Lease on SIGTERM.
const RELEASE_GATE: &str = "ControllerManagerReleaseLeaderElectionLockOnExit";
const ALWAYS_ALLOWED: &str = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics";

/// One of several replicas, with its own account in the audit log.
pub(crate) struct Account {
    pub(crate) name: &'static str,
    pub(crate) kubeconfig: PathBuf,
}

/// A controller's process, which is killed when this handle is dropped.
pub(crate) struct Controller {
    pub(crate) process: Process,
    program: PathBuf,
    /// The port and path of its health endpoint.
    health: Option<(u16, &'static str)>,
}

impl Controller {
    /// Starts the process and waits until it is healthy.
    pub(crate) async fn start(run: &Run<'_>, replica: Option<&Account>) -> Result<Self> {
        Self::start_with(run, replica, &[]).await
    }

    /// Starts the process with further arguments and waits until it is healthy.
    pub(crate) async fn start_with(run: &Run<'_>, replica: Option<&Account>, more: &[String]) -> Result<Self> {
        let controller = Self::spawn_with(run, replica, more)?;
        if let Some((port, path)) = controller.health {
            controller.guard(wait_until_healthy(port, path)).await?;
        }
        Ok(controller)
    }

    /// Starts the process without waiting, so that no health request affects its numbers. Without
    /// `replica`, it is the only one.
    pub(crate) fn spawn(run: &Run<'_>, replica: Option<&Account>) -> Result<Self> {
        Self::spawn_with(run, replica, &[])
    }

    /// Starts a program of a peer, which has no health endpoint.
    pub(crate) fn spawn_program(run: &Run<'_>, program: &Path, args: &[&str]) -> Result<Self> {
        let kubeconfig = run.plane.kubeconfig().to_string_lossy();
        let (name, envs) = (run.step.subject.name(), [("KUBECONFIG", &*kubeconfig)]);
        Ok(Self {
            process: run.plane.spawn(&name, program, args, &envs)?,
            program: program.to_owned(),
            health: None,
        })
    }

    fn spawn_with(run: &Run<'_>, replica: Option<&Account>, more: &[String]) -> Result<Self> {
        let (subject, plane) = (run.step.subject, &run.plane);
        if let Some(folder) = &run.peers {
            let program = folder.join(subject.name());
            return Self::spawn_program(run, &program, &[&run.concurrency().to_string()]);
        }
        let port = free_port()?;
        let mut args = vec![format!("--secure-port={port}")];
        args.extend(["--bind-address=127.0.0.1", ALWAYS_ALLOWED].map(str::to_owned));
        let suffix = replica.map_or("", |replica| replica.name);
        let name = format!("{}-{suffix}", subject.name());
        let kubeconfig = replica.map_or_else(|| plane.kubeconfig(), |replica| &replica.kubeconfig);
        args.push(format!("--kubeconfig={}", kubeconfig.display()));
        args.extend(controller_args(run, replica.is_some())?);
        args.extend_from_slice(more);
        let (program, health) = if subject.is_peer() {
            let own = plane.kubeconfig().display();
            args.extend([
                format!("--authentication-kubeconfig={own}"),
                format!("--authorization-kubeconfig={own}"),
                format!("--cert-dir={}", plane.folder().join(&name).display()),
                "--use-service-account-credentials=false".to_owned(),
            ]);
            (server_binary("kube-controller-manager")?, "/healthz")
        } else {
            (run.options.daemon.clone(), "/readyz")
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // A schedule without a time zone applies in the controller's zone.
        Ok(Self {
            process: plane.spawn(&name, &program, &args, &[("TZ", "UTC")])?,
            program,
            health: Some((port, health)),
        })
    }

    /// Returns the port and the path of the subject's liveness endpoint.
    pub(crate) fn liveness(&self) -> Option<(u16, &'static str)> {
        // kube-controller-manager has only the older endpoint.
        let (port, path) = self.health?;
        Some((port, if path == "/readyz" { "/livez" } else { path }))
    }

    /// Returns the size of the binary in KiB.
    pub(crate) fn binary(&self) -> Result<f64> {
        let metadata = fs::metadata(&self.program);
        let metadata = metadata.with_context(|| format!("failed to read the size of {}", self.program.display()))?;
        Ok(f64::from(u32::try_from(metadata.len() / 1024)?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn cpu_time(&self) -> Result<CpuTime> {
        CpuTime::of(self.pid())
    }

    /// Returns the resident memory, in KiB.
    pub(crate) fn memory(&self) -> Result<f64> {
        usage::resident(self.pid())
    }

    /// Returns a client for the controller's metrics.
    pub(crate) fn listener(&self) -> Result<Client> {
        let (port, _) = self.health.context("the controller has no listener")?;
        listener_client(port)
    }

    /// Waits until the controller has rested since `since` and its memory has settled, and returns
    /// the memory.
    pub(crate) async fn at_rest(&self, run: &Run<'_>, since: Instant) -> Result<Value> {
        let settled = usage::settled(self.pid(), since + run.options.rest());
        self.guard(settled).await
    }

    /// Waits until the servers and the controller are idle.
    pub(crate) async fn idle(&self, run: &Run<'_>) -> Result<()> {
        self.guard(run.idle(Some(self.pid()))).await
    }

    /// Runs `work`, and fails when the process exits before `work` is done.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let describe = |what| format!("{} {what}{}", self.process.name(), self.process.log_tail());
        tokio::select! {
            outcome = work => outcome.with_context(|| describe("did not do its work")),
            ended = self.process.wait(Duration::MAX) => bail!(describe(&format!("exited by itself with {}", ended?))),
        }
    }
}

/// Returns the flags that select the controller, leader election and limits.
fn controller_args(run: &Run<'_>, is_replica: bool) -> Result<Vec<String>> {
    let (subject, family) = (run.step.subject, run.step.row.family()?);
    let (controller, concurrency_flag) = match subject {
        Subject::PortreeveCrontab => (Some("crontab-controller"), "--concurrent-crontab-syncs"),
        _ => (family.controller.as_deref(), &*family.concurrency_flag),
    };
    let mut args = Vec::new();
    match controller {
        Some(controller) => {
            args.push(format!("--controllers={controller}"));
            // All subjects have the same default lease times.
            args.push(format!("--leader-elect={is_replica}"));
        }
        None if subject.is_peer() => {}
        None => args.push(enable_all_flag(&run.options.daemon)?),
    }
    if is_replica {
        args.push(format!("--leader-elect-resource-name={LEASE}"));
    }
    if run.step.row.lifted {
        if !concurrency_flag.is_empty() {
            args.push(format!("{concurrency_flag}={}", run.concurrency()));
        }
        if subject.is_peer() {
            args.extend(["--kube-api-qps=5000", "--kube-api-burst=10000"].map(str::to_owned));
        }
    }
    match subject {
        Subject::PeerRelease => args.push(format!("--feature-gates={RELEASE_GATE}=true")),
        Subject::PortreeveCrontab => args.push("--install-crds".to_owned()),
        _ => {}
    }
    Ok(args)
}

/// Returns the flag that enables every controller of the daemon, including those that are off by
/// default.
fn enable_all_flag(daemon: &Path) -> Result<String> {
    let list = daemon_output(daemon, "--list-controllers")?;
    // The first line is a heading.
    let names = list.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    Ok(format!("--controllers={}", names.collect::<Vec<_>>().join(",")))
}

/// Runs the daemon with a flag that makes it exit, and returns its output.
pub(crate) fn daemon_output(daemon: &Path, flag: &str) -> Result<String> {
    let path = daemon.display();
    let output = Command::new(daemon).arg(flag).output();
    let hint = || format!("failed to run {path}: build it with `cargo build --release -p portreeve-cli`");
    let output = output.with_context(hint)?;
    ensure!(output.status.success(), "{path} {flag} exited with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns a client for the listener of a controller. The certificate is not verified.
fn listener_client(port: u16) -> Result<Client> {
    let url = format!("https://127.0.0.1:{port}").parse();
    let mut config = Config::new(url.context("failed to build a URL")?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    Client::try_from(config).context("failed to build a client for the listener")
}

/// Waits until a health endpoint returns 200.
async fn wait_until_healthy(port: u16, path: &str) -> Result<()> {
    let request = || async {
        let client = listener_client(port)?;
        client.request_text(Request::get(path).body(Vec::new())?).await?;
        anyhow::Ok(())
    };
    eventually(START_LIMIT, &format!("{path} to say that all is well"), request).await
}
