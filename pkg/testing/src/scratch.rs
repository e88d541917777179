//! A temporary folder that is removed even if this process is killed.
//!
//! Dropping the handle removes the folder, as with [`tempfile::TempDir`]. For all other cases, a
//! janitor process (`janitor.sh`) waits on a pipe. This process and every process that works in the
//! folder hold the pipe open. The janitor removes the folder when the last of them has ended.

use std::io::{PipeWriter, pipe};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

const JANITOR: &str = include_str!("janitor.sh");

/// The folder. Fields are dropped in this order, so the pipe closes after the normal removal.
#[derive(Debug)]
pub(crate) struct ScratchDir {
    folder: TempDir,
    pipe_writer: PipeWriter,
}

impl ScratchDir {
    /// Creates a folder that only this user can enter.
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("portreeve-")
            .tempdir()
            .context("failed to create a temporary folder")?;
        let (reader, pipe_writer) = pipe().context("failed to create a pipe")?;
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
        Ok(Self { folder, pipe_writer })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns a handle that keeps the folder alive, to pass to a process that works in it.
    pub(crate) fn hold(&self) -> Result<Stdio> {
        let pipe_writer = self.pipe_writer.try_clone().context("failed to duplicate a pipe")?;
        Ok(Stdio::from(pipe_writer))
    }
}
