//! Tests of `portreeve-bench` with the bare client as the only subject, so that neither a daemon
//! nor kube-controller-manager is needed.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{Process, Signal};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_mins(10);

fn start(folder: &TempDir, args: &[&str]) -> Result<Process> {
    let program = Path::new(env!("CARGO_BIN_EXE_portreeve-bench"));
    let args = [&["no-daemon"], args].concat();
    Process::spawn("portreeve-bench", program, args, &[], &folder.path().join("log"))
}

#[tokio::test]
async fn the_report_contains_the_measures_of_the_bare_client() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.md");
    let output = format!("--output={}", report.display());
    let flags = ["--only=due", "--subjects=floor", "--rounds=1", "--count=5", &output];
    let bench = start(&folder, &flags)?;
    let status = bench.wait(LIMIT).await?;
    ensure!(
        status.success(),
        "portreeve-bench exited with {status}{}",
        bench.log_tail()
    );
    let report = fs::read_to_string(report)?;
    for part in [
        "# Benchmarks",
        "## Schedules",
        "| `due` | p99 | ",
        "| `due` | made within the minute | 5 | ",
    ] {
        ensure!(report.contains(part), "the report lacks {part}:\n{report}");
    }
    for absent in ["`quiet`", "Failed measurements", "| portreeve |"] {
        ensure!(!report.contains(absent), "the report has {absent}:\n{report}");
    }
    Ok(())
}

#[tokio::test]
async fn garbage_collection_rows_are_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.md");
    let output = format!("--output={}", report.display());
    let rows = "--only=foreground-3000,orphan-3000,graph";
    let flags = [rows, "--subjects=floor", "--rounds=1", "--count=20", &output];
    let bench = start(&folder, &flags)?;
    let status = bench.wait(LIMIT).await?;
    ensure!(
        status.success(),
        "portreeve-bench exited with {status}{}",
        bench.log_tail()
    );
    let report = fs::read_to_string(report)?;
    for part in [
        "| `foreground-3000` | DELETE to the end | ",
        "| `orphan-3000` | DELETE to the end | ",
        "| `graph` | objects removed | ",
    ] {
        ensure!(report.contains(part), "the report lacks {part}:\n{report}");
    }
    ensure!(!report.contains("Failed measurements"), "{report}");
    Ok(())
}

#[tokio::test]
async fn foo_rows_are_reported_with_and_without_statuses() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.md");
    let output = format!("--output={}", report.display());
    let subjects = "--subjects=floor,floor-status";
    let bench = start(
        &folder,
        &["--only=foo-1000", subjects, "--rounds=1", "--count=20", &output],
    )?;
    let status = bench.wait(LIMIT).await?;
    ensure!(
        status.success(),
        "portreeve-bench exited with {status}{}",
        bench.log_tail()
    );
    let report = fs::read_to_string(report)?;
    for part in [
        "| row | measure | floor | floor-status | ",
        "| `foo-1000` | first POST to last Deployment | ",
        "| `foo-1000` | first POST to last status | – | ",
    ] {
        ensure!(report.contains(part), "the report lacks {part}:\n{report}");
    }
    Ok(())
}

#[tokio::test]
async fn sigterm_ends_the_run_and_prints_the_incomplete_report_to_stdout() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("report.md");
    let output = format!("--output={}", report.display());
    let flags = ["--only=due", "--subjects=floor", "--rounds=2", "--count=5", &output];
    let bench = start(&folder, &flags)?;
    bench.wait_for_log(LIMIT, |line| line.contains("2 of 2: ")).await?;
    bench.signal(Signal::TERM)?;
    let status = bench.wait(LIMIT).await?;
    ensure!(status.code() == Some(1), "portreeve-bench exited with {status}");
    bench
        .wait_for_log(LIMIT, |line| line.starts_with("| `due` | p99 | "))
        .await?;
    bench
        .wait_for_log(LIMIT, |line| line == "error: terminated before everything was measured")
        .await?;
    ensure!(!report.exists());
    Ok(())
}

#[tokio::test]
async fn the_error_for_a_missing_daemon_names_the_build_command() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let bench = start(&folder, &["--subjects=portreeve"])?;
    let status = bench.wait(LIMIT).await?;
    ensure!(status.code() == Some(1), "portreeve-bench exited with {status}");
    bench
        .wait_for_log(LIMIT, |line| line.contains("cargo build --release -p portreeve"))
        .await?;
    Ok(())
}
