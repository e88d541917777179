//! The limit on open files.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use portreeve_testing::Process;

use crate::fixtures::{LIMIT, daemon::PROGRAM};

#[tokio::test]
async fn the_soft_limit_on_open_files_is_raised_to_the_hard_limit() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let script = r#"ulimit -Sn 200 && ulimit -Hn 300 && exec "$0" "$@""#;
    let flags = ["--master=https://127.0.0.1:1", "--secure-port=0", "-v=4"];
    let args = ["-c", script, PROGRAM].into_iter().chain(flags);
    let process = Process::spawn("limited", Path::new("/bin/sh"), args, &[], &folder.path().join("log"))?;
    let is_raise = |line: &str| line.contains("raised limit on open files");
    let line = process.wait_for_log(LIMIT, is_raise).await?;
    ensure!(line.contains("from=200") && line.contains("to=300"), "{line}");
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.pid()))?;
    let open_files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let open_files: Vec<_> = open_files
        .context("no limit on open files")?
        .split_whitespace()
        .collect();
    ensure!(open_files.starts_with(&["300", "300"]), "{open_files:?}");
    Ok(())
}
