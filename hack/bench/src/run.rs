//! The context of a measurement of one subject, on its own control plane.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::Client;
use portreeve_testing::{ControlPlane, Process};

use crate::audit;
use crate::options::{Options, Step};
use crate::tables::{Scenario, Subject};
use crate::usage::wait_until_idle;

const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/build");
/// The time limit for the build of the controllers on other frameworks. The first build compiles a
/// Go program and a Rust program with all their dependencies, perhaps on two cores.
const PEERS_LIMIT: Duration = Duration::from_hours(1);

/// Writes a progress line to stderr, with the time since the first one.
pub(crate) fn log(what: impl AsRef<str>) {
    static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);
    let seconds = STARTED.elapsed().as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    eprintln!("[{hours}:{minutes:02}:{seconds:02}] {}", what.as_ref());
}

/// The context of a measurement.
pub(crate) struct Run<'a> {
    pub(crate) options: &'a Options,
    pub(crate) step: Step,
    pub(crate) plane: ControlPlane,
    /// A client without retries.
    pub(crate) client: Client,
    /// The folder with the subject's binary, if the subject is built on demand.
    pub(crate) peers: Option<PathBuf>,
}

impl<'a> Run<'a> {
    /// Starts the control plane.
    pub(crate) async fn start(options: &'a Options, step: Step) -> Result<Self> {
        let peers: &[&str] = match (step.subject, &step.row.scenario) {
            (Subject::ControllerRuntime, Scenario::Admission | Scenario::Conversion) => &["webhook"],
            (Subject::ControllerRuntime | Subject::KubeRuntime, _) => &["controller-runtime", "kube-runtime"],
            _ => &[],
        };
        let peers = if peers.is_empty() {
            None
        } else {
            Some(build_peers(peers).await?)
        };
        let mut plane = ControlPlane::builder().audit_policy(audit::POLICY);
        if step.row.scenario == Scenario::Conversion {
            // Otherwise, the apiserver converts objects only when it starts and when they change.
            plane = plane.apiserver_arg("--watch-cache=false");
        }
        let plane = plane.start().await?;
        let mut config = plane.config()?;
        config.default_retry = false;
        Ok(Self {
            client: Client::try_from(config).context("failed to build a client")?,
            options,
            step,
            plane,
            peers,
        })
    }

    /// Returns the number of schedules, dependents or objects.
    pub(crate) fn count(&self) -> usize {
        self.options.count(self.step.row)
    }

    /// Returns how many objects the subject works on at a time.
    pub(crate) fn concurrency(&self) -> u16 {
        let row = self.step.row;
        if row.lifted {
            self.options.concurrency(row)
        } else {
            row.concurrency
        }
    }

    /// Waits until the servers, and the controller if there is one, are idle.
    pub(crate) async fn idle(&self, controller: Option<u32>) -> Result<()> {
        let servers = [self.plane.apiserver().pid()?, self.plane.etcd().pid()?];
        let all: Vec<u32> = servers.into_iter().chain(controller).collect();
        wait_until_idle(&all).await
    }
}

/// Builds programs on other frameworks if necessary and returns their folder.
async fn build_peers(names: &[&str]) -> Result<PathBuf> {
    log("  building the peers, unless they exist");
    let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
    let log = folder.path().join("log");
    let build = Process::spawn(PEERS, Path::new(PEERS), names, &[], &log)?;
    let status = build.wait(PEERS_LIMIT).await?;
    ensure!(status.success(), "{PEERS} ended with {status}{}", build.log_tail());
    let printed = build.wait_for_log(Duration::from_secs(1), |line| Path::new(line).is_dir());
    let folder = printed
        .await
        .context("the script did not print the folder of the peers")?;
    Ok(folder.into())
}
