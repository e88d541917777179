//! Rules of this repository that the compiler does not check: dependencies between crates and
//! modules, pure modules, single versions, names, files and documents.

mod clocks;
mod crates;
mod cycles;
mod docs;
mod files;
mod includes;
mod leases;
mod modules;
mod names;
mod numbers;
mod planes;
mod purity;
mod syntax;
mod targets;
mod versions;
mod width;

use std::path::{Path, PathBuf};

/// Returns the workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
