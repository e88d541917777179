//! A temporary folder that is removed even when this process is killed.
//!
//! Dropping it removes it, as [`tempfile::TempDir`] does. For the other ends a janitor (`janitor.sh`) waits on a pipe that this process
//! and every process at work in the folder hold open, and removes the folder when the last of them is gone.

use std::io::{PipeWriter, pipe};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

const JANITOR: &str = include_str!("janitor.sh");

/// The folder; fields are dropped in this order, so the janitor is let go after the ordinary removal.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    folder: TempDir,
    lease: PipeWriter,
}

impl ScratchDir {
    /// Makes a folder that only this user can enter.
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("portreeve-")
            .tempdir()
            .context("failed to make a temporary folder")?;
        let (reader, lease) = pipe().context("failed to make a pipe")?;
        let status = Command::new("/bin/sh")
            .args(["-c", JANITOR, "janitor"])
            .arg(folder.path())
            .stdin(reader)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .status()
            .context("failed to start the janitor of the temporary folder")?;
        ensure!(
            status.success(),
            "the janitor of the temporary folder ended with {status}"
        );
        Ok(Self { folder, lease })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A hold on the folder, to be given to a process that works in it.
    pub(crate) fn hold(&self) -> Result<Stdio> {
        let lease = self.lease.try_clone().context("failed to duplicate a pipe")?;
        Ok(Stdio::from(lease))
    }
}
