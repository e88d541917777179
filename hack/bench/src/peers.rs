//! The controllers for Foos that others would write: where they are, built when they are not there yet.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::Process;

use crate::progress::Progress;
use crate::rows::Subject;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/build");
/// The first time, two cores compile a Go module and a Rust program with all that they need.
const LIMIT: Duration = Duration::from_hours(1);

/// The folder that holds the programs, each by the name of its subject.
pub(crate) async fn build(progress: &Progress) -> Result<PathBuf> {
    progress.log("  building the peers, unless they are there");
    let folder = tempfile::tempdir().context("failed to make a temporary folder")?;
    let log = folder.path().join("log");
    let peers = [Subject::ControllerRuntime, Subject::KubeRuntime].map(Subject::name);
    let build = Process::spawn(SCRIPT, Path::new(SCRIPT), &peers, &[], &log)?;
    let status = build.wait(LIMIT).await?;
    ensure!(status.success(), "{SCRIPT} ended with {status}{}", build.log_tail());
    let printed = build.wait_for_log(Duration::from_secs(1), |line| Path::new(line).is_dir());
    Ok(printed.await.context("it did not say where the peers are")?.into())
}
