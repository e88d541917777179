//! Builds the controllers for Foos on other frameworks, on demand.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::Process;

use crate::progress::Progress;
use crate::rows::Subject;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/peers/build");
/// The time limit of the build. The first build compiles a Go program and a Rust program with all
/// their dependencies, perhaps on two cores.
const LIMIT: Duration = Duration::from_hours(1);

/// Builds the programs if necessary and returns their folder. Each has the name of its subject.
pub(crate) async fn build(progress: &Progress) -> Result<PathBuf> {
    progress.log("  building the peers, unless they exist");
    let folder = tempfile::tempdir().context("failed to create a temporary folder")?;
    let log = folder.path().join("log");
    let peers = [Subject::ControllerRuntime, Subject::KubeRuntime].map(Subject::name);
    let build = Process::spawn(SCRIPT, Path::new(SCRIPT), &peers, &[], &log)?;
    let status = build.wait(LIMIT).await?;
    ensure!(status.success(), "{SCRIPT} ended with {status}{}", build.log_tail());
    let printed = build.wait_for_log(Duration::from_secs(1), |line| Path::new(line).is_dir());
    Ok(printed
        .await
        .context("the script did not print the folder of the peers")?
        .into())
}
