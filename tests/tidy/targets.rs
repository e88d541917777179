//! The targets of the workspace: a harness only where there are tests, and a pass for doctests only
//! where there is a doctest. Each one takes seconds of every run.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{crates::metadata, files::sources};

/// Returns whether one of the lines, without spaces around it, satisfies `is_wanted`.
fn has_line(text: &str, is_wanted: impl Fn(&str) -> bool) -> bool {
    text.lines().map(str::trim).any(is_wanted)
}

fn is_test(line: &str) -> bool {
    ["#[test]", "#[tokio::test", "proptest! {"]
        .iter()
        .any(|start| line.starts_with(start))
}

fn is_doctest(line: &str) -> bool {
    ["/// ```", "//! ```"].iter().any(|fence| line.starts_with(fence))
}

#[test]
fn only_targets_with_tests_have_a_harness() -> Result<()> {
    let (metadata, sources) = (metadata()?, sources()?);
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
        let is_kind = |target: &Value, kind: &str| target["kind"][0] == kind;
        let has_library = targets.iter().any(|target| is_kind(target, "lib"));
        for target in targets
            .iter()
            .filter(|target| is_kind(target, "lib") || is_kind(target, "bin"))
        {
            let file = Path::new(target["src_path"].as_str().unwrap_or_default());
            let file = file.strip_prefix(root)?;
            let folder = file.parent().unwrap_or(file);
            // Beside a library, a program consists of one file.
            let is_single = has_library && is_kind(target, "bin");
            let belongs = |path: &Path| path == file || (!is_single && path.starts_with(folder));
            let texts: Vec<_> = sources.iter().filter(|(path, _)| belongs(path)).collect();
            let has = |is_wanted: fn(&str) -> bool| texts.iter().any(|(_, text)| has_line(text, is_wanted));
            let name = file.display();
            ensure!(
                target["test"] == has(is_test),
                "{name}: set `test` in Cargo.toml to {}",
                has(is_test)
            );
            ensure!(
                is_kind(target, "bin") || target["doctest"] == has(is_doctest),
                "{name}: set `doctest` in Cargo.toml to {}",
                has(is_doctest)
            );
        }
    }
    Ok(())
}
