//! Tests of `portreeve-run` with a shell script in place of the daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::{Process, Signal, eventually};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_mins(4);

const SAMPLES: &str = "# Holds nothing.\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: two}\n";

/// The part of the script that answers `--list-controllers`.
const LISTING: &str = r#"[ "$1" != --list-controllers ] || { echo '[{"name": "one"}, {"name": "two"}]'; exit; }"#;

struct RunFixture {
    run: Process,
    _folder: TempDir,
}

impl RunFixture {
    /// Starts `portreeve-run` with a daemon that runs this script.
    fn start(daemon: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let samples = folder.path().join("samples");
        fs::create_dir(&samples)?;
        fs::write(samples.join("samples.yaml"), SAMPLES)?;
        fs::write(samples.join("README.md"), "no sample")?;
        let binary = folder.path().join("daemon");
        fs::write(&binary, format!("#!/bin/sh\n{LISTING}\n{daemon}\n"))?;
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
        let program = Path::new(env!("CARGO_BIN_EXE_portreeve-run"));
        let args = [binary.as_os_str(), samples.as_os_str(), "-v=2".as_ref()];
        let run = Process::spawn("portreeve-run", program, args, &[], &folder.path().join("log"))?;
        Ok(Self { run, _folder: folder })
    }

    async fn line(&self, start: &str) -> Result<String> {
        self.run.wait_for_log(LIMIT, |line| line.starts_with(start)).await
    }

    /// Returns the control plane's folder, from the line with its kubeconfig.
    async fn plane(&self) -> Result<PathBuf> {
        let line = self.line("  kubeconfig").await?;
        let kubeconfig = line.split_whitespace().nth(1).context("the line contains no path")?;
        Ok(Path::new(kubeconfig)
            .parent()
            .context("the kubeconfig has no folder")?
            .to_path_buf())
    }
}

async fn wait_until_removed(folder: &Path) -> Result<()> {
    eventually(LIMIT, "the control plane to vanish", || async {
        (!folder.exists()).then_some(())
    })
    .await
}

#[tokio::test]
async fn sigterm_stops_the_daemon_and_then_the_control_plane() -> Result<()> {
    let daemon = "trap 'echo daemon: told to stop; exit 0' TERM; echo daemon: \"$@\"; while :; do sleep 0.05; done";
    let fixture = RunFixture::start(daemon)?;
    let flags = fixture.line("daemon:").await?;
    for flag in [
        "--kubeconfig=/",
        "--controllers=one,two",
        "--install-crds",
        "--secure-port=",
        "-v=2",
    ] {
        ensure!(flags.contains(flag), "{flags} lacks {flag}");
    }
    fixture.line("Applied ConfigMap one (1 of 2): Holds nothing.").await?;
    fixture.line("Applied Namespace two (2 of 2)").await?;
    let plane = fixture.plane().await?;
    ensure!(plane.exists());
    fixture.run.signal(Signal::TERM)?;
    fixture.line("daemon: told to stop").await?;
    let status = fixture.run.wait(LIMIT).await?;
    ensure!(
        status.success(),
        "portreeve-run exited with {status}{}",
        fixture.run.log_tail()
    );
    wait_until_removed(&plane).await
}

#[tokio::test]
async fn an_exited_daemon_is_reported_as_an_error() -> Result<()> {
    let fixture = RunFixture::start("echo daemon: \"$@\"; exit 3")?;
    let status = fixture.run.wait(LIMIT).await?;
    ensure!(status.code() == Some(1), "portreeve-run exited with {status}");
    fixture
        .line("error: the daemon exited unexpectedly with exit status: 3")
        .await?;
    Ok(())
}

#[tokio::test]
async fn killing_portreeve_run_kills_the_daemon() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pipe_path = folder.path().join("pipe_path");
    ensure!(Command::new("mkfifo").arg(&pipe_path).status()?.success());
    let mut reader = pipe::OpenOptions::new().open_receiver(&pipe_path)?;
    // The daemon ignores every signal except SIGKILL, as a hung daemon does, and holds a pipe open
    // until it dies.
    let daemon = format!(
        "trap '' TERM INT HUP; exec 9>'{}'; while :; do sleep 0.05; done",
        pipe_path.display()
    );
    let fixture = RunFixture::start(&daemon)?;
    let plane = fixture.plane().await?;
    fixture.run.signal(Signal::KILL)?;
    fixture.run.wait(LIMIT).await?;
    wait_until_removed(&plane).await?;
    let mut received = Vec::new();
    timeout(LIMIT, reader.read_to_end(&mut received))
        .await
        .context("the daemon is still running")??;
    Ok(())
}
