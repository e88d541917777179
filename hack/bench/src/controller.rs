//! The process of a subject: starting it, and waiting until its controller reconciles.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Request;
use kube::api::{Patch, PatchParams};
use kube::{Client, Config};
use portreeve_testing::{ControlPlane, Process, Signal, eventually, free_port, server_binary};
use serde_json::json;

use crate::lease;
use crate::objects::{Kind, NAMESPACE, post};
use crate::rows::{Subject, Task};

/// How long a controller may take from its start to its first reconcile, with 30,000 objects to
/// list on two busy cores.
pub(crate) const START_LIMIT: Duration = Duration::from_mins(2);
/// The feature gate that makes kube-controller-manager release its Lease on SIGTERM.
const RELEASE_GATE: &str = "ControllerManagerReleaseLeaderElectionLockOnExit";
const ALWAYS_ALLOWED: &str = "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics";

/// The daemon's binary, with its help text and its list of controllers.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    path: PathBuf,
    controllers: String,
    help: String,
}

impl Daemon {
    pub(crate) fn at(path: PathBuf) -> Result<Self> {
        let run = |flag: &str| {
            let output = Command::new(&path).arg(flag).output();
            let output = output.with_context(|| {
                let path = path.display();
                format!("failed to run {path}: build it with `cargo build --release -p portreeve`")
            })?;
            ensure!(
                output.status.success(),
                "{} {flag} ended with {}",
                path.display(),
                output.status
            );
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        Ok(Self {
            controllers: run("--list-controllers")?,
            help: run("--help")?,
            path,
        })
    }

    pub(crate) fn knows(&self, controller: &str) -> bool {
        self.controllers.split_whitespace().any(|word| word == controller)
    }

    /// Returns the flag that enables every controller, including those that are off by default.
    fn enable_all_flag(&self) -> String {
        // The first line is a heading.
        let names = self.controllers.lines().skip(1);
        let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
        format!("--controllers={}", names.join(","))
    }

    /// Returns the default number of schedules that the daemon works on at a time.
    pub(crate) fn concurrency(&self, subject: Subject) -> Option<u16> {
        default_of(&self.help, concurrency_flag(Task::Schedules, subject))
    }
}

/// Returns the flag for the number of objects to work on at a time. The daemon uses Kubernetes'
/// names where they exist.
fn concurrency_flag(task: Task, subject: Subject) -> &'static str {
    match (task, subject) {
        (Task::Schedules, Subject::PortreeveCrontab) => "--concurrent-crontab-syncs",
        (Task::Schedules | Task::LeaderElection, _) => "--concurrent-cron-job-syncs",
        (Task::Garbage, _) => "--concurrent-gc-syncs",
        (Task::Foos | Task::Everything | Task::Parts, _) => "--concurrent-foo-syncs",
    }
}

/// Returns the default of a flag, read from a help text.
fn default_of(help: &str, flag: &str) -> Option<u16> {
    let (_, rest) = help.split_once(&format!("{flag} "))?;
    let (description, _) = rest.split_once("\n      --").unwrap_or((rest, ""));
    let (_, default) = description.split_once("[default: ")?;
    default.split_once(']')?.0.parse().ok()
}

/// The role of a controller: the only replica, or one of several.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role<'a> {
    Alone(Limits),
    /// The only replica, with leader election, by the default flags.
    Usual,
    /// One of several replicas, with its own account in the audit log.
    Replica {
        account: &'a str,
        kubeconfig: &'a Path,
    },
}

impl Role<'_> {
    fn limits(self) -> Limits {
        match self {
            Self::Alone(limits) => limits,
            Self::Usual | Self::Replica { .. } => Limits::Default,
        }
    }
}

/// The limits of a controller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Limits {
    /// Unlimited requests per second, for this many objects at a time.
    Lifted(u16),
    Default,
}

/// A controller's process, which is killed when this handle is dropped.
pub(crate) struct Controller {
    process: Process,
    program: PathBuf,
    kind: Kind,
    /// The port and path of its health endpoint.
    health: Option<(u16, &'static str)>,
}

impl Controller {
    /// Starts the process and waits until it is healthy.
    pub(crate) async fn start(
        task: Task,
        subject: Subject,
        daemon: Option<&Daemon>,
        plane: &ControlPlane,
        role: Role<'_>,
    ) -> Result<Self> {
        let controller = Self::spawn(task, subject, daemon, plane, role)?;
        if let Some((port, path)) = controller.health {
            controller.guard(wait_until_healthy(port, path)).await?;
        }
        Ok(controller)
    }

    /// Starts the process without waiting, so that no health request affects its numbers.
    pub(crate) fn spawn(
        task: Task,
        subject: Subject,
        daemon: Option<&Daemon>,
        plane: &ControlPlane,
        role: Role<'_>,
    ) -> Result<Self> {
        let port = free_port()?;
        let mut name = subject.name();
        let mut args = vec![
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            ALWAYS_ALLOWED.to_owned(),
        ];
        let kubeconfig = match role {
            Role::Alone(_) => {
                args.push("--leader-elect=false".to_owned());
                plane.kubeconfig()
            }
            Role::Usual => plane.kubeconfig(),
            Role::Replica { account, kubeconfig } => {
                // All subjects have the same default lease times.
                args.push("--leader-elect=true".to_owned());
                args.push(format!("--leader-elect-resource-name={}", lease::NAME));
                name = format!("{name}-{account}");
                kubeconfig
            }
        };
        args.push(format!("--kubeconfig={}", kubeconfig.display()));
        if let Limits::Lifted(concurrency) = role.limits() {
            args.push(format!("{}={concurrency}", concurrency_flag(task, subject)));
        }
        match subject.controller(task) {
            Some(controller) => args.push(format!("--controllers={controller}")),
            None => args.extend(daemon.filter(|_| subject.is_ours()).map(Daemon::enable_all_flag)),
        }
        let (program, health) = if subject.is_peer() {
            args.extend(peer_args(subject, &name, plane, role.limits()));
            (server_binary("kube-controller-manager")?, "/healthz")
        } else {
            if kind_of(subject) == Kind::CronTab {
                args.push("--install-crds".to_owned());
            }
            (
                daemon.context("the daemon's binary is not set")?.path.clone(),
                "/readyz",
            )
        };
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // A schedule without a time zone applies in the controller's zone.
        let process = plane.spawn(&name, &program, &args, &[("TZ", "UTC")])?;
        Ok(Self {
            process,
            program,
            kind: kind_of(subject),
            health: Some((port, health)),
        })
    }

    /// Starts one of the controllers for Foos on other frameworks, which have no health endpoint.
    pub(crate) fn spawn_built(subject: Subject, folder: &Path, plane: &ControlPlane, workers: u16) -> Result<Self> {
        let name = subject.name();
        let program = folder.join(&name);
        let kubeconfig = plane
            .kubeconfig()
            .to_str()
            .context("the kubeconfig's path is not valid UTF-8")?;
        let process = plane.spawn(&name, &program, &[&workers.to_string()], &[("KUBECONFIG", kubeconfig)])?;
        Ok(Self {
            process,
            program,
            kind: kind_of(subject),
            health: None,
        })
    }

    pub(crate) fn binary_kibibytes(&self) -> Result<u64> {
        let metadata = fs::metadata(&self.program);
        Ok(metadata
            .with_context(|| format!("failed to size {}", self.program.display()))?
            .len()
            / 1024)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits until the process has exited, and returns its status.
    pub(crate) async fn ended(&self, limit: Duration) -> Result<ExitStatus> {
        self.process.wait(limit).await
    }

    /// Runs `work`, and fails when the process exits before `work` is done.
    pub(crate) async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            outcome = work => outcome.with_context(|| {
                let (name, log) = (self.process.name(), self.process.log_tail());
                format!("{name} did not do its work{log}")
            }),
            ended = self.process.wait(Duration::MAX) => {
                let (name, log) = (self.process.name(), self.process.log_tail());
                bail!("{name} exited by itself with {}{log}", ended?)
            }
        }
    }

    /// Waits until a controller of schedules has reconciled a new object named `probe`. By then the
    /// controller has observed all earlier objects, because watches and work queues keep their
    /// order.
    pub(crate) async fn has_caught_up(&self, client: &Client, probe: &str) -> Result<()> {
        let api = self.kind.api(client);
        post(&api, self.kind.object(probe, "0 0 1 1 *", true)).await?;
        if self.kind == Kind::CronJob {
            // Every cronjob-controller removes a Job that does not exist from the status, even if
            // the CronJob is suspended. A suspended CronJob causes no work later.
            let missing = json!({
                "apiVersion": "batch/v1",
                "kind": "Job",
                "namespace": NAMESPACE,
                "name": "missing",
                "uid": "00000000-0000-0000-0000-000000000000",
            });
            let status = Patch::Merge(json!({"status": {"active": [missing]}}));
            api.patch_status(probe, &PatchParams::default(), &status)
                .await
                .context("failed to write the status of the probe")?;
        }
        let reconciled = || async {
            let status = api.get(probe).await?.data["status"].take();
            let reconciled = match self.kind {
                Kind::CronJob => status["active"].as_array().is_none_or(Vec::is_empty),
                Kind::CronTab => status["observedGeneration"].is_i64(),
            };
            ensure!(reconciled, "the controller has not changed the status {status}");
            Ok(())
        };
        self.guard(eventually(
            START_LIMIT,
            "the controller to work on the probe",
            reconciled,
        ))
        .await
    }
}

/// Returns the kind that a subject works on in the rows of schedules. For subjects without
/// schedules the result is unused.
pub(crate) fn kind_of(subject: Subject) -> Kind {
    match subject {
        Subject::PortreeveCrontab => Kind::CronTab,
        Subject::Floor
        | Subject::FloorStatus
        | Subject::Peer
        | Subject::PeerRelease
        | Subject::ControllerRuntime
        | Subject::KubeRuntime
        | Subject::Portreeve => Kind::CronJob,
    }
}

fn peer_args(subject: Subject, name: &str, plane: &ControlPlane, limits: Limits) -> Vec<String> {
    let kubeconfig = plane.kubeconfig().display();
    let mut args = vec![
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--cert-dir={}", plane.folder().join(name).display()),
        "--use-service-account-credentials=false".to_owned(),
    ];
    if subject == Subject::PeerRelease {
        args.push(format!("--feature-gates={RELEASE_GATE}=true"));
    }
    match limits {
        Limits::Lifted(_) => args.extend(["--kube-api-qps=5000".to_owned(), "--kube-api-burst=10000".to_owned()]),
        Limits::Default => (),
    }
    args
}

/// Waits until a health endpoint returns 200. The certificate is not verified.
async fn wait_until_healthy(port: u16, path: &str) -> Result<()> {
    let url = format!("https://127.0.0.1:{port}").parse();
    let mut config = Config::new(url.context("failed to build a URL")?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    let request = || async {
        let client = Client::try_from(config.clone())?;
        client.request_text(Request::get(path).body(Vec::new())?).await?;
        anyhow::Ok(())
    };
    eventually(START_LIMIT, &format!("{path} to say that all is well"), request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_is_read_from_the_help_of_its_flag() {
        let help = "
      --concurrent-crontab-syncs <N>
          The number of CronTabs that are allowed to sync concurrently

      --concurrent-cron-job-syncs <N>
          The number of cron job objects that are allowed to sync concurrently

          [default: 10]
      --other <N>  [default: 7]
";
        assert_eq!(default_of(help, "--concurrent-cron-job-syncs"), Some(10));
        assert_eq!(default_of(help, "--concurrent-crontab-syncs"), None);
        assert_eq!(default_of(help, "--other"), Some(7));
        assert_eq!(default_of(help, "--concurrent"), None);
    }
}
