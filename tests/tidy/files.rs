//! Source files: their module docs, their length, banned text, and the purity of cores.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::root;

/// The largest number of lines of a file.
const LONGEST: usize = 450;
/// Names of files and folders that contain a pure core.
const PURE: &[&str] = &[
    "core",
    "decide",
    "elector",
    "evaluate",
    "graph",
    "limiter",
    "plan",
    "rules",
    "schedule",
    "selection",
    "store",
    "verdict",
];
/// Text that pure cores must not contain: async code, clocks, locks, logs, clients, randomness.
const IMPURE: &[&str] = &[
    "async fn",
    ".await",
    "::now()",
    "Mutex",
    "RwLock",
    "tracing::",
    "kube::Client",
    "kube::Api",
    "fastrand",
    "std::fs",
    "std::env",
];
/// Text that no file may contain.
const BANNED: &[&str] = &[
    "#[ignore",
    "#[should_panic",
    "todo!(",
    "unimplemented!(",
    "FIXME",
    "/root/",
    "/home/",
    "/tmp/",
];

/// Returns the files under version control that match one of `patterns`, and new ones that are not
/// ignored, by their path in the tree and with their text.
pub(crate) fn texts(patterns: &[&str]) -> Result<Vec<(PathBuf, String)>> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "--"])
        .args(patterns)
        .current_dir(root())
        .output()
        .context("failed to run git ls-files")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout)?;
    let existing = list.lines().filter(|path| root().join(path).is_file());
    existing
        .map(|path| Ok((PathBuf::from(path), fs::read_to_string(root().join(path))?)))
        .collect()
}

/// Returns the Rust files of the tree with their text.
pub(crate) fn sources() -> Result<Vec<(PathBuf, String)>> {
    texts(&["*.rs"])
}

/// Returns whether a file belongs to these tests, which contain the banned text themselves.
pub(crate) fn is_this_test(path: &Path) -> bool {
    path.starts_with("tests/tidy")
}

#[test]
fn every_file_starts_with_a_module_doc() -> Result<()> {
    for (path, text) in sources()? {
        let is_test_module =
            path.file_stem().is_some_and(|stem| stem == "tests") || path.to_string_lossy().contains("/tests/");
        let opens = text.starts_with("//!") || is_test_module;
        ensure!(opens, "{} does not start with //!", path.display());
    }
    Ok(())
}

#[test]
fn no_file_is_longer_than_the_limit() -> Result<()> {
    for (path, text) in sources()? {
        let lines = text.lines().count();
        ensure!(
            lines <= LONGEST,
            "{} has {lines} lines, more than {LONGEST}: split it",
            path.display()
        );
    }
    Ok(())
}

#[test]
fn no_file_contains_banned_text() -> Result<()> {
    for (path, text) in sources()? {
        for banned in BANNED {
            let found = text.contains(banned) && !is_this_test(&path);
            ensure!(!found, "{} contains {banned}", path.display());
        }
    }
    Ok(())
}

#[test]
fn pure_cores_use_no_clock_lock_log_or_client() -> Result<()> {
    for (path, text) in sources()? {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let folder = path
            .parent()
            .and_then(Path::file_name)
            .and_then(|folder| folder.to_str())
            .unwrap_or_default();
        // src/core.rs is a core, and so are the files in src/core/, except for tests.
        let is_test = ["tests", "model"].contains(&stem) || path.to_string_lossy().contains("/tests/");
        if is_test || !PURE.contains(&stem) && !PURE.contains(&folder) {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        for line in lines {
            let impure = IMPURE.iter().find(|word| line.contains(**word));
            ensure!(
                impure.is_none(),
                "{} is a pure core, but contains: {}",
                path.display(),
                line.trim()
            );
        }
    }
    Ok(())
}
