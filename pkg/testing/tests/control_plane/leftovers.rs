//! Tests that a control plane leaves no process and no file, however it ends.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use portreeve_testing::{ControlPlane, LIMIT, Process, Signal, eventually};
use rustix::process::{Pid, kill_process, test_kill_process_group};
use tokio::task::JoinSet;

/// The parts of a control plane that must disappear: the process group of each server, including
/// its watchdog, and the folder.
struct Traces {
    groups: [u32; 2],
    folder: PathBuf,
}

impl Traces {
    async fn wait_until_gone(&self) -> Result<()> {
        eventually(LIMIT, "the control plane to disappear", || async {
            if let Some(group) = self.groups.iter().find(|group| is_alive(**group)) {
                bail!("the process group {group} is still alive");
            }
            ensure!(
                !self.folder.exists(),
                "the folder {} still exists",
                self.folder.display()
            );
            Ok(())
        })
        .await
    }
}

/// Returns whether any process of the group runs. A zombie does not count.
fn is_alive(group: u32) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        let group = i32::try_from(group).ok().and_then(Pid::from_raw);
        return group.is_some_and(|group| test_kill_process_group(group).is_ok());
    };
    let mut stats = processes
        .flatten()
        .filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats.any(|stat| {
        // The format is: pid (name) state parent group ... The name may contain any character.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next() != Some("Z") && fields.nth(1) == Some(group.to_string().as_str())
    })
}

/// Starts a process that holds a control plane. Returns it with the parts that it could leave
/// behind.
async fn holder(log: &Path) -> Result<(Process, Traces)> {
    let program = Path::new(env!("CARGO_BIN_EXE_control-plane"));
    let holder = Process::spawn("control-plane", program, [""; 0], &[], log)?;
    holder
        .wait_for_log(LIMIT * 2, |line| line.starts_with("kubeconfig "))
        .await?;
    let output = fs::read_to_string(log)?;
    let value = |key: &str| {
        output
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .context("the output of the holder is incomplete")
    };
    let traces = Traces {
        groups: [value("etcd ")?.parse()?, value("kube-apiserver ")?.parse()?],
        folder: PathBuf::from(value("folder ")?),
    };
    ensure!(
        traces.groups.into_iter().all(is_alive) && traces.folder.exists(),
        "the servers or the folder do not exist"
    );
    Ok((holder, traces))
}

#[tokio::test]
async fn a_panic_ends_the_control_plane() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let groups = [plane.etcd().pid()?, plane.apiserver().pid()?];
    let traces = Traces {
        groups,
        folder: plane.folder().to_path_buf(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        assert!(plane.url().is_empty(), "panic while the test holds a control plane");
    });
    let outcome = tasks.join_next().await.context("the set has no task")?;
    ensure!(outcome.is_err_and(|error| error.is_panic()));
    ensure!(
        !groups.into_iter().any(is_alive) && !traces.folder.exists(),
        "drop returned before everything was removed"
    );
    Ok(())
}

#[tokio::test]
async fn a_kill_ends_the_control_plane_even_when_a_server_is_paused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (holder, traces) = holder(&folder.path().join("log")).await?;
    let etcd = i32::try_from(traces.groups[0])
        .ok()
        .and_then(Pid::from_raw)
        .context("the pid is not valid")?;
    kill_process(etcd, Signal::STOP)?;
    holder.signal(Signal::KILL)?;
    traces.wait_until_gone().await
}

#[tokio::test]
async fn ctrl_c_ends_the_control_plane_and_its_holder_succeeds() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (holder, traces) = holder(&folder.path().join("log")).await?;
    holder.signal(Signal::INT)?;
    let status = holder.wait(LIMIT).await?;
    ensure!(status.success(), "the holder ended with {status}{}", holder.log_tail());
    traces.wait_until_gone().await
}

#[tokio::test]
async fn a_program_that_is_killed_from_outside_leaves_no_watchdog() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let process = Process::spawn("sleep", Path::new("sleep"), ["1000"], &[], &log)?;
    process.signal(Signal::KILL)?;
    process.wait(LIMIT).await?;
    eventually(LIMIT, "the process group to disappear", || async {
        (!is_alive(process.pid())).then_some(())
    })
    .await
}
