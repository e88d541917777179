//! The rules of this tree that no compiler checks: who may depend on whom, one version of what must be one, and how files look.

mod crates;
mod files;
mod names;
mod versions;

use std::path::{Path, PathBuf};

/// The workspace's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
