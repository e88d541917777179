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

/// How many times another port is tried when somebody takes one between our look and the daemon's.
const PORT_ATTEMPTS: usize = 5;

/// A daemon that serves. It dies with this handle, and with the test binary.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) admin: Admin,
}

impl Daemon {
    /// Starts a daemon as the administrator and waits until its endpoints are served; /metrics is open.
    ///
    /// Started again under the same name, it appends to the same log.
    pub(crate) async fn start(plane: &ControlPlane, name: &str, args: &[&str]) -> Result<Self> {
        Self::start_as(plane, plane.kubeconfig(), name, args).await
    }

    /// The same, with somebody else's rights.
    pub(crate) async fn start_as(plane: &ControlPlane, kubeconfig: &Path, name: &str, args: &[&str]) -> Result<Self> {
        let args: Vec<&str> = [OPEN].iter().chain(args).copied().collect();
        Self::start_closed(plane, kubeconfig, name, &args).await
    }

    /// The same, with no more endpoints open than by default.
    pub(crate) async fn start_closed(
        plane: &ControlPlane,
        kubeconfig: &Path,
        name: &str,
        args: &[&str],
    ) -> Result<Self> {
        Self::start_with(plane, kubeconfig, name, args, &[]).await
    }

    /// The same, with more in its environment than it inherits.
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
        bail!("found no port for {name} in {PORT_ATTEMPTS} attempts");
    }

    /// Everything that it, and earlier daemons of its name, wrote to the log.
    pub(crate) fn log(&self) -> Result<String> {
        let log = self.process.log().context("it has a log")?;
        Ok(fs::read_to_string(log)?)
    }

    /// Waits until the log holds a line with all of these words, and returns the line.
    pub(crate) async fn wait_for_line(&self, words: &[&str]) -> Result<String> {
        let wanted = |line: &str| words.iter().all(|word| line.contains(word));
        let line = self.process.wait_for_log(LIMIT, wanted).await;
        line.with_context(|| format!("a line with {words:?}"))
    }
}

/// Many daemons share a control plane here and are no replicas of each other. Those that are say so.
pub(crate) fn leader_elect_flag(args: &[&str]) -> Option<&'static str> {
    let elected = args.iter().any(|arg| arg.starts_with("--leader-elect"));
    (!elected).then_some("--leader-elect=false")
}

/// Runs the executable to its end, for what ends by itself. It finds no cluster in its environment.
pub(crate) fn run(args: &[&str]) -> Result<Output> {
    let mut command = Command::new(PROGRAM);
    command.args(args);
    for variable in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        command.env_remove(variable);
    }
    command.output().context("failed to run the executable")
}

/// What the executable prints when it succeeds.
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
