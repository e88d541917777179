//! promtool, prometheus, and the CRDs of the Prometheus operator.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::LazyLock,
};

use anyhow::{Context, Result, anyhow};

use crate::fixtures::repository::printed_folder;

/// Returns the folder of prometheus and promtool. Installs them once if `make prometheus` has not.
pub(super) fn folder() -> Result<&'static Path> {
    static FOLDER: LazyLock<Result<PathBuf>> = LazyLock::new(|| printed_folder("hack/prometheus/install"));
    FOLDER.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// Returns the folder of the operator's CRDs. Downloads them once if `make prometheus` has not.
pub(super) fn operator_crds() -> Result<&'static Path> {
    static FOLDER: LazyLock<Result<PathBuf>> = LazyLock::new(|| printed_folder("hack/prometheus/crds"));
    FOLDER.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// Runs promtool in a folder with this input. Returns whether it succeeded, and what it printed.
pub(super) fn promtool(args: &[&str], folder: &Path, input: &str) -> Result<(bool, String)> {
    let mut child = Command::new(self::folder()?.join("promtool"))
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start promtool")?;
    let mut stdin = child.stdin.take().context("promtool has no input")?;
    // promtool reads all its input before it prints.
    stdin
        .write_all(input.as_bytes())
        .context("failed to write to promtool")?;
    drop(stdin);
    let output = child.wait_with_output()?;
    let printed = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(printed)?))
}
