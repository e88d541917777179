//! The executable as a supervised process.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context, Result, bail, ensure};
use portreeve_testing::{ControlPlane, Process, free_port};

use super::{
    LIMIT,
    admin::{Admin, OPEN},
};

/// The executable under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_portreeve");

/// The number of ports to try: another process can take a port between the check and the daemon's
/// start.
const PORT_ATTEMPTS: usize = 5;

/// A running daemon. It is killed when this handle is dropped or the test binary ends.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) admin: Admin,
}

impl Daemon {
    /// Starts a daemon as the administrator, with /metrics open, and waits until it serves its
    /// endpoints.
    ///
    /// A daemon that is started again under the same name appends to the same log.
    pub(crate) async fn start(plane: &ControlPlane, name: &str, args: &[&str]) -> Result<Self> {
        Self::start_as(plane, plane.kubeconfig(), name, args).await
    }

    /// Starts a daemon with the rights of another kubeconfig, and with /metrics open.
    pub(crate) async fn start_as(plane: &ControlPlane, kubeconfig: &Path, name: &str, args: &[&str]) -> Result<Self> {
        let args: Vec<&str> = [OPEN].iter().chain(args).copied().collect();
        Self::start_closed(plane, kubeconfig, name, &args).await
    }

    /// Starts a daemon with only the endpoints open that are open by default.
    pub(crate) async fn start_closed(
        plane: &ControlPlane,
        kubeconfig: &Path,
        name: &str,
        args: &[&str],
    ) -> Result<Self> {
        Self::start_with(plane, kubeconfig, name, args, &[]).await
    }

    /// Starts a daemon with additional environment variables.
    pub(crate) async fn start_with(
        plane: &ControlPlane,
        kubeconfig: &Path,
        name: &str,
        args: &[&str],
        envs: &[(&str, &str)],
    ) -> Result<Self> {
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        for _ in 0..PORT_ATTEMPTS {
            let admin = Admin { port: free_port()? };
            let port = format!("--secure-port={}", admin.port);
            let common = [&*kubeconfig, &*port, "--bind-address=127.0.0.1"];
            let args: Vec<&str> = common
                .into_iter()
                .chain(leader_elect_flag(args))
                .chain(args.iter().copied())
                .collect();
            let process = plane.spawn(name, Path::new(PROGRAM), &args, envs)?;
            let address = format!("127.0.0.1:{}", admin.port);
            let serves = |line: &str| line.contains("serving") && line.contains(&address);
            match process.wait_for_log(LIMIT, serves).await {
                Ok(_) => return Ok(Self { process, admin }),
                Err(_) if process.log_tail().contains("in use") => {}
                Err(error) => return Err(error),
            }
        }
        bail!("found no free port for {name} in {PORT_ATTEMPTS} attempts");
    }

    /// Returns the log of this daemon and of earlier daemons with its name.
    pub(crate) fn log(&self) -> Result<String> {
        let log = self.process.log().context("the daemon has no log")?;
        Ok(fs::read_to_string(log)?)
    }

    /// Waits until the log contains a line with all of these words, and returns the line.
    pub(crate) async fn wait_for_line(&self, words: &[&str]) -> Result<String> {
        let is_wanted = |line: &str| words.iter().all(|word| line.contains(word));
        let line = self.process.wait_for_log(LIMIT, is_wanted).await;
        line.with_context(|| format!("found no line with {words:?}"))
    }
}

/// Returns the flag that turns leader election off, unless `args` configure it: most daemons of the
/// tests share a control plane without being replicas of each other.
pub(crate) fn leader_elect_flag(args: &[&str]) -> Option<&'static str> {
    let elected = args.iter().any(|arg| arg.starts_with("--leader-elect"));
    (!elected).then_some("--leader-elect=false")
}

/// Runs a command of the executable that exits by itself, without a cluster in its environment.
pub(crate) fn run(args: &[&str]) -> Result<Output> {
    let mut command = Command::new(PROGRAM);
    command.args(args);
    for variable in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        command.env_remove(variable);
    }
    command.output().context("failed to run the executable")
}

/// Returns the standard output of a command that succeeds.
pub(crate) fn printed(args: &[&str]) -> Result<String> {
    let output = run(args)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{args:?} ended with {}: {errors}",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?)
}
