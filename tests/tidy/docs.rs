//! The documents: how long they may be, and whether their links work.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{files::texts, root};

/// The most words of the documents in the root.
const LIMITS: &[(&str, usize)] = &[("README.md", 1_200), ("ARCHITECTURE.md", 3_000), ("CHANGELOG.md", 800)];
/// The most words of a page of docs/ that people write.
const PAGE_LIMIT: usize = 1_500;
/// The pages that a program writes.
const GENERATED: &[&str] = &["docs/configuration.md", "docs/metrics.md"];

/// Returns the Markdown files in the root and in docs/. The sources of generated pages elsewhere
/// have links that start at docs/.
fn pages() -> Result<BTreeMap<PathBuf, String>> {
    let mut pages: BTreeMap<_, _> = texts(&["*.md"])?.into_iter().collect();
    let folders = ["", "docs"].map(|folder| Some(Path::new(folder)));
    pages.retain(|path, _| folders.contains(&path.parent()));
    Ok(pages)
}

/// Returns the lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        !is_fenced && !is_fence
    })
}

/// Returns the anchor that GitHub derives from a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the anchors of a page. A heading that is repeated gets a number.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let first = anchor(heading.trim_start_matches('#'));
        let numbered = (1..).map(|number| format!("{first}-{number}"));
        let unused = iter::once(first.clone())
            .chain(numbered)
            .find(|name| !found.contains(name));
        found.extend(unused);
    }
    found
}

/// Returns the targets of the links in a page, except those to other sites.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let links = prose(text).flat_map(|line| line.split("](").skip(1));
    let targets = links.filter_map(|link| link.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://"))
}

/// Returns the path of `file` in the tree, seen from `folder`.
fn resolve(folder: &Path, file: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for component in folder.join(file).components() {
        if component == Component::ParentDir {
            path.pop();
        } else {
            path.push(component);
        }
    }
    path
}

/// Returns whether a file exists and, if it is a page and `anchor` is not empty, has the heading.
fn exists(pages: &BTreeMap<PathBuf, String>, file: &Path, anchor: &str) -> bool {
    match pages.get(file) {
        Some(text) => anchor.is_empty() || anchors(text).contains(anchor),
        None => anchor.is_empty() && root().join(file).exists(),
    }
}

/// Returns the pages of docs/ that a text names, with the anchors, which may be empty.
fn mentions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.split("docs/").skip(1).filter_map(move |rest| {
        let (name, rest) = rest.split_at(rest.find(|c| !is_part(c))?);
        let rest = rest.strip_prefix(".md")?;
        let anchor = rest.strip_prefix('#').unwrap_or_default();
        let end = anchor.find(|c| !is_part(c)).unwrap_or(anchor.len());
        (!name.is_empty()).then_some((name, &anchor[..end]))
    })
}

#[test]
fn documents_are_short_enough_to_be_read() -> Result<()> {
    let pages = pages()?;
    let mut limits: Vec<_> = LIMITS
        .iter()
        .map(|(file, limit)| (PathBuf::from(file), *limit))
        .collect();
    let written = pages.keys().filter(|path| path.starts_with("docs"));
    let written = written.filter(|path| !GENERATED.iter().any(|generated| path.ends_with(generated)));
    limits.extend(written.map(|path| (path.clone(), PAGE_LIMIT)));
    for (file, limit) in limits {
        let text = pages
            .get(&file)
            .with_context(|| format!("{} does not exist", file.display()))?;
        let words = text.split_whitespace().count();
        ensure!(
            words <= limit,
            "{} has {words} words, more than {limit}: say it shorter, or split the page",
            file.display()
        );
    }
    Ok(())
}

#[test]
fn links_lead_to_files_and_headings() -> Result<()> {
    let pages = pages()?;
    let mut broken = Vec::new();
    for (path, text) in &pages {
        let folder = path.parent().context("a file has no folder")?;
        for target in targets(text) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() {
                path.clone()
            } else {
                resolve(folder, file)
            };
            if !exists(&pages, &file, anchor) {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "links that lead nowhere: {broken:#?}");
    Ok(())
}

/// Errors, help texts, alerts and comments name pages by their path in the tree.
#[test]
fn pages_that_code_names_exist() -> Result<()> {
    let pages = pages()?;
    let mut broken = Vec::new();
    for (path, text) in texts(&["*.rs", "*.yaml", "*.yml", "*.tpl", "*.txt", "*.toml", "Makefile"])? {
        for (name, anchor) in mentions(&text) {
            if !exists(&pages, Path::new(&format!("docs/{name}.md")), anchor) {
                broken.push(format!("{}: {name}.md#{anchor}", path.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "pages that do not exist: {broken:#?}");
    Ok(())
}

#[test]
fn the_index_lists_each_page() -> Result<()> {
    let pages = pages()?;
    let index = Path::new("docs/README.md");
    let listed: BTreeSet<_> = targets(&pages[index])
        .map(|target| resolve(Path::new("docs"), target))
        .collect();
    let missing: Vec<_> = pages
        .keys()
        .filter(|path| path.starts_with("docs") && *path != index && !listed.contains(*path))
        .collect();
    ensure!(missing.is_empty(), "docs/README.md does not list {missing:?}");
    Ok(())
}

#[test]
fn targets_and_mentions_are_found() {
    let text = "See [a](b.md#c) and [d](https://example.com).\n```\n[e](f)\n```\n";
    assert_eq!(targets(text).collect::<Vec<_>>(), ["b.md#c"]);
    // Built from parts, because these files are searched too.
    let text = ["see docs", "/a-b.md#c-1, docs", "/d.md. docs", "/e/f.md"].concat();
    assert_eq!(mentions(&text).collect::<Vec<_>>(), [("a-b", "c-1"), ("d", "")]);
    assert_eq!(resolve(Path::new("docs"), "../a/b"), Path::new("a/b"));
}
