//! Files that a crate includes: they are in its folder, so that whoever changes one sees the crate.

use std::path::{Component, Path, PathBuf};

use anyhow::{Result, ensure};

use crate::{files::sources, root};

/// Crates that may include files from elsewhere, and why.
const EXEMPT: &[(&str, &str)] = &[("pkg/testing", "reads the versions of the servers where they are built")];
const MACROS: &[&str] = &["include_str!(\"", "include_bytes!(\""];

/// Returns the folder of the crate that contains a file.
fn crate_of(file: &Path) -> Option<&Path> {
    file.ancestors()
        .skip(1)
        .find(|folder| root().join(folder).join("Cargo.toml").is_file())
}

/// Returns whether a file is only compiled for tests, which may compare pages with the code.
fn is_test(file: &Path) -> bool {
    let is_in_tests = file
        .components()
        .any(|part| part == Component::Normal("tests".as_ref()));
    is_in_tests || file.file_stem().is_some_and(|stem| stem == "tests")
}

/// Returns the paths that a file includes, without `..`.
fn included(file: &Path, text: &str) -> Vec<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let paths = MACROS.iter().flat_map(|name| text.split(name).skip(1));
    let paths = paths.filter_map(|rest| rest.split_once('"').map(|(path, _)| path));
    let resolve = |path: &str| {
        let mut resolved = folder.to_owned();
        for part in Path::new(path).components() {
            match part {
                Component::ParentDir => drop(resolved.pop()),
                part => resolved.push(part),
            }
        }
        resolved
    };
    paths.map(resolve).collect()
}

#[test]
fn crates_include_only_files_of_their_folder() -> Result<()> {
    let mut found = 0;
    for (file, text) in sources()? {
        let Some(folder) = crate_of(&file).filter(|_| !is_test(&file)) else {
            continue;
        };
        if EXEMPT.iter().any(|(exempt, _)| folder == Path::new(exempt)) {
            continue;
        }
        for path in included(&file, &text) {
            found += 1;
            ensure!(
                path.starts_with(folder),
                "{} includes {}: move that file into {}",
                file.display(),
                path.display(),
                folder.display()
            );
        }
    }
    ensure!(found > 5, "the test found only {found} included files");
    Ok(())
}
