//! Source files: their module docs, their length, and banned text.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::root;

/// The largest number of lines of a file.
const LONGEST: usize = 450;
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

/// Returns whether a list of files with reasons has this one.
pub(crate) fn is_listed(path: &Path, list: &[(&str, &str)]) -> bool {
    list.iter().any(|(listed, _)| path == Path::new(listed))
}

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

/// The lengths that README.md promises.
#[test]
fn the_example_is_as_short_as_promised() -> Result<()> {
    let readme = fs::read_to_string(root().join("README.md"))?;
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    for (file, limit) in [("lib.rs", 100), ("webhooks.rs", 40)] {
        let promise = format!("in under {limit} lines");
        ensure!(readme.contains(&promise), "README.md does not say {promise:?}");
        let lines = fs::read_to_string(root().join("docs/example/src").join(file))?
            .lines()
            .count();
        ensure!(lines < limit, "{file} of the example has {lines} lines");
    }
    Ok(())
}
