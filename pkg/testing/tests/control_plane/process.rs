//! Tests of supervised processes, with a shell as the program.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::{LIMIT, Process, Signal};
use tempfile::TempDir;

fn shell(folder: &TempDir, script: &str) -> Result<Process> {
    let log = folder.path().join("log");
    Process::spawn("shell", Path::new("/bin/sh"), ["-c", script], &[], &log)
}

#[tokio::test]
async fn signals_reach_the_program_itself() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // The program does not ignore SIGINT, as a background job of a shell would.
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let process = shell(&folder, "echo ready; exec sleep 1000")?;
        process.wait_for_log(LIMIT, |line| line == "ready").await?;
        process.signal(signal)?;
        let status = process.wait(LIMIT).await?;
        ensure!(
            status.signal() == Some(signal.as_raw()),
            "{signal:?} ended it with {status}"
        );
        let error = process
            .signal(signal)
            .err()
            .context("the signal to an ended process succeeded")?;
        ensure!(
            error
                .to_string()
                .starts_with("cannot signal shell: it has ended with signal"),
            "{error}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_resumed_program_continues_where_it_was_paused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let process = shell(
        &folder,
        "trap 'echo told; exit 3' TERM; echo ready; while :; do sleep 0.01; done",
    )?;
    process.wait_for_log(LIMIT, |line| line == "ready").await?;
    process.pause()?;
    process.signal(Signal::TERM)?;
    ensure!(
        process.wait(Duration::from_millis(200)).await.is_err(),
        "the paused program handled a signal"
    );
    process.resume()?;
    ensure!(process.wait(LIMIT).await?.code() == Some(3));
    Ok(())
}

#[tokio::test]
async fn wait_for_log_reads_only_lines_of_this_run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    shell(&folder, "echo first")?
        .wait_for_log(LIMIT, |line| line == "first")
        .await?;
    let again = shell(&folder, "echo second")?;
    let error = again
        .wait_for_log(LIMIT, |line| line == "first")
        .await
        .err()
        .context("the wait found a line of another run")?;
    ensure!(
        error
            .to_string()
            .contains("shell ended with exit status: 0 before it wrote"),
        "{error}"
    );
    ensure!(
        error.to_string().ends_with("first\nsecond"),
        "the tail does not show both runs: {error}"
    );
    Ok(())
}

#[tokio::test]
async fn waits_are_bounded_and_their_errors_show_the_end_of_the_log() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let process = shell(&folder, "echo started; exec sleep 1000")?;
    process.wait_for_log(LIMIT, |line| line == "started").await?;
    let limit = Duration::from_millis(50);
    let error = process
        .wait(limit)
        .await
        .err()
        .context("the wait succeeded although the program sleeps")?
        .to_string();
    ensure!(
        error.starts_with("shell still runs after 50ms; its log") && error.ends_with("started"),
        "{error}"
    );
    let error = process
        .wait_for_log(limit, |line| line == "done")
        .await
        .err()
        .context("the wait succeeded although the program sleeps")?
        .to_string();
    ensure!(
        error.starts_with("shell did not write the expected line within 50ms"),
        "{error}"
    );
    Ok(())
}
