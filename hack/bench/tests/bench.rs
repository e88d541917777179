//! Tests of `portreeve-bench` with the bare client as the only subject, so that neither a daemon
//! nor kube-controller-manager is needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{Process, Signal};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_mins(10);

/// Starts the program with a report in the folder, and returns the report's path.
fn start(folder: &TempDir, args: &[&str]) -> Result<(Process, PathBuf)> {
    let program = Path::new(env!("CARGO_BIN_EXE_portreeve-bench"));
    let report = folder.path().join("report.md");
    let output = format!("--output={}", report.display());
    let args = [&["no-daemon", &output], args].concat();
    let process = Process::spawn("portreeve-bench", program, args, &[], &folder.path().join("log"))?;
    Ok((process, report))
}

#[tokio::test]
async fn the_report_contains_the_measures_of_the_bare_client() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let only = "--only=due,foreground-3000,foo-1000,admission,conversion";
    let (bench, report) = start(&folder, &[only, "--subjects=floor", "--rounds=1", "--count=20"])?;
    let (status, log) = (bench.wait(LIMIT).await?, bench.log_tail());
    ensure!(status.success(), "portreeve-bench exited with {status}{log}");
    let report = fs::read_to_string(report)?;
    for part in [
        "# Benchmarks",
        "| `due` | p99 | ",
        "| `foreground-3000` | DELETE to the end | ",
        "| `foo-1000` | first POST to last status | ",
        "| `admission` | p99 | ",
        "| `conversion` | list in pages | ",
    ] {
        ensure!(report.contains(part), "the report lacks {part}:\n{report}");
    }
    for absent in ["`idle-10000`", "Failed measurements"] {
        ensure!(!report.contains(absent), "the report has {absent}:\n{report}");
    }
    Ok(())
}

#[tokio::test]
async fn sigterm_ends_the_run_and_prints_the_incomplete_report_to_stdout() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (bench, report) = start(&folder, &["--only=due", "--subjects=floor", "--rounds=2", "--count=5"])?;
    bench.wait_for_log(LIMIT, |line| line.contains("2 of 2: ")).await?;
    bench.signal(Signal::TERM)?;
    let status = bench.wait(LIMIT).await?;
    ensure!(status.code() == Some(1), "portreeve-bench exited with {status}");
    for expected in ["| `due` | p99 | ", "error: terminated before everything was measured"] {
        bench.wait_for_log(LIMIT, |line| line.starts_with(expected)).await?;
    }
    ensure!(!report.exists());
    Ok(())
}

#[tokio::test]
async fn the_error_for_a_missing_daemon_names_the_build_command() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (bench, _) = start(&folder, &["--subjects=portreeve"])?;
    let status = bench.wait(LIMIT).await?;
    ensure!(status.code() == Some(1), "portreeve-bench exited with {status}");
    let hint = |line: &str| line.contains("cargo build --release -p portreeve-cli");
    bench.wait_for_log(LIMIT, hint).await?;
    Ok(())
}
