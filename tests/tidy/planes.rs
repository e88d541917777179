//! Control planes of tests: a start takes 3 s of CPU time, so tests use those of the pool.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use crate::files::{is_listed, is_this_test, sources};

/// The files that start a control plane of their own, and why.
const OWN: &[(&str, &str)] = &[
    ("docs/example/tests/copies.rs", "the only plane of its binary"),
    ("docs/example/tests/webhooks.rs", "the only plane of its binary"),
    ("pkg/testing/src/bin/control-plane.rs", "no test"),
    (
        "pkg/testing/tests/control_plane/leftovers.rs",
        "tests the end of the servers",
    ),
    ("tests/blocking/tests/takeover.rs", "the only plane of its binary"),
    (
        "tests/integration/fixtures/aggregated_api.rs",
        "flags with files of the test",
    ),
    (
        "tests/integration/fence/reinstalled.rs",
        "the apiserver must not have stopped watching Leases",
    ),
    ("tests/integration/garbage/restore.rs", "replaces etcd's data"),
    ("tests/integration/outages.rs", "replaces etcd's data"),
];

/// Returns whether a control plane starts in this code, directly or with options.
fn starts(code: &str) -> bool {
    let mut built = code.split("ControlPlane::builder()").skip(1);
    code.contains("ControlPlane::start()")
        || built.any(|after| after.split(';').next().is_some_and(|chain| chain.contains(".start()")))
}

/// The folders in `tests/integration` are those of controllers and of parts of the framework.
#[test]
fn a_controller_has_at_most_one_plane_of_its_own() -> Result<()> {
    let mut folders = BTreeSet::new();
    let folder = |path: &'static str| Some(path.strip_prefix("tests/integration/")?.split_once('/')?.0);
    for folder in OWN.iter().filter_map(|(path, _)| folder(path)) {
        ensure!(
            folders.insert(folder),
            "tests/integration/{folder}: let its tests share one control plane of their own"
        );
    }
    Ok(())
}

#[test]
fn tests_use_control_planes_of_the_pool() -> Result<()> {
    for (path, text) in sources()?.iter().filter(|(path, _)| !is_this_test(path)) {
        ensure!(
            starts(text) == is_listed(path, OWN),
            "{}: use `pooled()` where a test starts a control plane, or list the file in tests/tidy/planes.rs \
             with the reason; remove it from there if it starts none",
            path.display()
        );
    }
    Ok(())
}
