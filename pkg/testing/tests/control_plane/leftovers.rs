//! Whatever ends a control plane, no process of it and no file is left.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use portreeve_testing::{ControlPlane, Process, Signal, eventually};
use rustix::process::{Pid, kill_process, test_kill_process_group};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_mins(2);

/// What must be gone: the process group of each server, which its watchdog is in too, and the folder.
struct Traces {
    groups: [u32; 2],
    folder: PathBuf,
}

impl Traces {
    async fn vanish(&self) -> Result<()> {
        eventually(LIMIT, "a control plane to vanish", || async {
            if let Some(group) = self.groups.iter().find(|group| is_alive(**group)) {
                bail!("the process group {group} is alive");
            }
            ensure!(!self.folder.exists(), "{} is there", self.folder.display());
            Ok(())
        })
        .await
    }
}

/// Whether any process of the group runs. One that is dead and waits for init to notice does not.
fn is_alive(group: u32) -> bool {
    let Ok(processes) = fs::read_dir("/proc") else {
        let group = i32::try_from(group).ok().and_then(Pid::from_raw);
        return group.is_some_and(|group| test_kill_process_group(group).is_ok());
    };
    let mut stats = processes
        .flatten()
        .filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    stats.any(|stat| {
        // pid (name) state parent group ...; the name may hold anything.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.next() != Some("Z") && fields.nth(1) == Some(group.to_string().as_str())
    })
}

/// A process that holds a control plane, and what it would leave.
async fn holder(log: &Path) -> Result<(Process, Traces)> {
    let program = Path::new(env!("CARGO_BIN_EXE_control-plane"));
    let holder = Process::spawn("control-plane", program, [""; 0], &[], log)?;
    holder
        .wait_for_log(LIMIT * 2, |line| line.starts_with("kubeconfig "))
        .await?;
    let said = fs::read_to_string(log)?;
    let value = |key: &str| {
        said.lines()
            .find_map(|line| line.strip_prefix(key))
            .context("it says all of them")
    };
    let traces = Traces {
        groups: [value("etcd ")?.parse()?, value("kube-apiserver ")?.parse()?],
        folder: PathBuf::from(value("folder ")?),
    };
    ensure!(
        traces.groups.into_iter().all(is_alive) && traces.folder.exists(),
        "it has begun"
    );
    Ok((holder, traces))
}

#[tokio::test]
async fn a_panic_ends_it() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let groups = [plane.etcd().pid()?, plane.apiserver().pid()?];
    let traces = Traces {
        groups,
        folder: plane.folder().to_path_buf(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        assert!(plane.url().is_empty(), "a panic with a control plane in hand");
    });
    let outcome = tasks.join_next().await.context("there is one task")?;
    ensure!(outcome.is_err_and(|error| error.is_panic()));
    ensure!(
        !groups.into_iter().any(is_alive) && !traces.folder.exists(),
        "a drop returns when all is gone"
    );
    Ok(())
}

#[tokio::test]
async fn a_kill_ends_it_even_when_a_server_is_stopped() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (holder, traces) = holder(&folder.path().join("log")).await?;
    let etcd = i32::try_from(traces.groups[0])
        .ok()
        .and_then(Pid::from_raw)
        .context("a pid")?;
    kill_process(etcd, Signal::STOP)?;
    holder.signal(Signal::KILL)?;
    traces.vanish().await
}

#[tokio::test]
async fn ctrl_c_ends_it_and_its_holder_with_success() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (holder, traces) = holder(&folder.path().join("log")).await?;
    holder.signal(Signal::INT)?;
    let status = holder.wait(LIMIT).await?;
    ensure!(status.success(), "the holder ended with {status}{}", holder.log_tail());
    traces.vanish().await
}

#[tokio::test]
async fn a_server_that_was_killed_from_outside_leaves_no_watchdog() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let process = Process::spawn("sleep", Path::new("sleep"), ["1000"], &[], &log)?;
    let pid = i32::try_from(process.pid())
        .ok()
        .and_then(Pid::from_raw)
        .context("a pid")?;
    kill_process(pid, Signal::KILL)?;
    process.wait(LIMIT).await?;
    eventually(LIMIT, "the group to vanish", || async {
        (!is_alive(process.pid())).then_some(())
    })
    .await
}
