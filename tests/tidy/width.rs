//! Line width: comments and Markdown prose wrap at 100 columns. Code has rustfmt's own limit.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::files::texts;

/// The last column that prose may use.
const WIDTH: usize = 100;
/// Files that a program writes, in which comments are as long as it makes them.
const GENERATED: &[&str] = &[
    "controllers/crontab/crds.yaml",
    "controllers/foo/crds.yaml",
    "deploy/crds/",
    "deploy/helm/portreeve/crds/",
    "docs/configuration.md",
];

/// Returns the tracked files that match `patterns` and that people write, with their text.
fn written_by_people(patterns: &[&str]) -> Result<Vec<(PathBuf, String)>> {
    let mut files = texts(patterns)?;
    files.retain(|(path, _)| !GENERATED.iter().any(|generated| path.starts_with(generated)));
    Ok(files)
}

/// Returns the numbers of the lines that are too long, outside of tables and fenced blocks.
fn too_long(text: &str, prose: impl Fn(&str) -> Option<&str>) -> Vec<usize> {
    let mut is_fenced = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(prose) = prose(line) else {
            is_fenced = false;
            continue;
        };
        is_fenced ^= prose.starts_with("```");
        if !is_fenced && !prose.starts_with('|') && width(line) > WIDTH {
            found.push(number);
        }
    }
    found
}

/// Returns how many columns `line` takes without the targets of its links, which cannot be wrapped.
fn width(line: &str) -> usize {
    let mut width = line.chars().count();
    for target in line.split("](").skip(1) {
        width -= target.find(')').map_or(0, |end| target[..=end].chars().count() + 1);
    }
    for word in line.split_whitespace().filter(|word| word.starts_with("http")) {
        width -= word.chars().count();
    }
    width
}

fn comment<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    let text = line.trim_start().strip_prefix(marker)?;
    Some(text.trim_start_matches(['/', '!', '#']).trim_start())
}

fn check(patterns: &[&str], prose: impl Fn(&str) -> Option<&str>) -> Result<()> {
    let mut found = Vec::new();
    for (path, text) in written_by_people(patterns)? {
        let lines = too_long(&text, &prose);
        found.extend(lines.iter().map(|line| format!("{}:{line}", path.display())));
    }
    ensure!(found.is_empty(), "lines over {WIDTH} columns: {found:#?}");
    Ok(())
}

#[test]
fn rust_and_go_comments_wrap() -> Result<()> {
    check(&["*.rs", "*.go"], |line| comment(line, "//"))
}

#[test]
fn script_and_manifest_comments_wrap() -> Result<()> {
    let patterns = [
        "*.toml",
        "*.yaml",
        "*.yml",
        "*.tpl",
        "Makefile",
        "Containerfile",
        ".ci/run",
        "hack/**/build",
        "hack/compat/*",
        "hack/image/test",
        "hack/prometheus/*",
        "hack/test/*",
        "hack/update",
        "hack/verify",
    ];
    check(&patterns, |line| comment(line, "#"))
}

#[test]
fn markdown_wraps() -> Result<()> {
    check(&["*.md"], |line| Some(line.trim_start()))
}
