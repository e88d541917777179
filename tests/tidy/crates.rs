//! The dependencies between crates that ARCHITECTURE.md allows.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::root;

/// Our crates, and our crates that each may depend on outside of its tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("portreeve-api", &[]),
    ("portreeve-cron", &[]),
    ("portreeve-metrics", &[]),
    ("portreeve-workqueue", &["portreeve-metrics"]),
    ("portreeve-serving", &["portreeve-metrics"]),
    ("portreeve-testing", &[]),
    ("portreeve-garbagecollector-graph", &["portreeve-api"]),
    ("portreeve-client", &["portreeve-api", "portreeve-metrics"]),
    (
        "portreeve-auth",
        &["portreeve-client", "portreeve-metrics", "portreeve-serving"],
    ),
    ("portreeve-informer", &["portreeve-api", "portreeve-client"]),
    ("portreeve-leader", &["portreeve-client", "portreeve-metrics"]),
    (
        "portreeve-reconcile",
        &[
            "portreeve-api",
            "portreeve-client",
            "portreeve-informer",
            "portreeve-metrics",
            "portreeve-workqueue",
        ],
    ),
    (
        "portreeve-manager",
        &[
            "portreeve-api",
            "portreeve-client",
            "portreeve-informer",
            "portreeve-leader",
            "portreeve-metrics",
            "portreeve-reconcile",
            "portreeve-serving",
            "portreeve-workqueue",
        ],
    ),
    (
        "portreeve-webhook",
        &[
            "portreeve-api",
            "portreeve-client",
            "portreeve-metrics",
            "portreeve-reconcile",
        ],
    ),
    (
        "portreeve-daemon",
        &[
            "portreeve-api",
            "portreeve-auth",
            "portreeve-client",
            "portreeve-informer",
            "portreeve-leader",
            "portreeve-manager",
            "portreeve-metrics",
            "portreeve-reconcile",
            "portreeve-serving",
            "portreeve-servingcertificate",
            "portreeve-webhook",
        ],
    ),
    (
        "portreeve-bench",
        &["portreeve-crontab", "portreeve-foo", "portreeve-testing"],
    ),
    ("portreeve-run", &["portreeve-testing"]),
    ("portreeve-tests", &[]),
];
/// Our crates that every controller may depend on.
const CONTROLLER: &[&str] = &[
    "portreeve-api",
    "portreeve-cron",
    "portreeve-informer",
    "portreeve-reconcile",
];
/// The controllers with an I/O shell: they act on every resource that they discover, and send their
/// own requests.
const WITH_A_SHELL: &[&str] = &["portreeve-garbagecollector", "portreeve-namespace"];
/// What a shell may depend on besides.
const SHELL: &[&str] = &[
    "portreeve-client",
    "portreeve-garbagecollector-graph",
    "portreeve-metrics",
    "portreeve-workqueue",
    "tokio",
    "prometheus",
    "tracing",
];
/// Crates that controllers must not depend on: controllers decide, and the framework acts.
const NOT_IN_CONTROLLERS: &[&str] = &[
    "tokio",
    "tokio-util",
    "hyper",
    "hyper-util",
    "reqwest",
    "prometheus",
    "tracing",
];
/// Crates that are pure as a whole, and all crates that each may depend on outside of its tests.
const PURE: &[(&str, &[&str])] = &[
    ("portreeve-cron", &["cron", "jiff", "thiserror"]),
    (
        "portreeve-garbagecollector-graph",
        &["hashbrown", "portreeve-api", "serde", "serde_json"],
    ),
];
/// Programs, which may depend on every crate.
const PROGRAMS: &[&str] = &[
    "kubectl-portreeve",
    "portreeve-blocking",
    "portreeve-cli",
    "portreeve-example",
];
/// Crates that may choose the API version of k8s-openapi outside of tests.
const CHOOSES_API_VERSION: &[&str] = &[
    "kubectl-portreeve",
    "portreeve-cli",
    "portreeve-example",
    "portreeve-run",
    "portreeve-testing",
];

struct Package {
    name: String,
    folder: String,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    features: Vec<String>,
}

fn is_of_a_shell(package: &Package, dependency: &Dependency) -> bool {
    WITH_A_SHELL.contains(&&*package.name) && SHELL.contains(&&*dependency.name)
}

/// Returns the packages of the workspace with their dependencies outside of tests.
fn packages() -> Result<Vec<Package>> {
    let metadata = metadata()?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let dependency = |value: &Value| Dependency {
        name: text(&value["name"]),
        features: list(&value["features"]).iter().map(text).collect(),
    };
    let package = |value: &Value| {
        let dependencies = list(&value["dependencies"]);
        let normal = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
        Package {
            name: text(&value["name"]),
            folder: text(&value["manifest_path"]).replace(root, ""),
            dependencies: normal.map(dependency).collect(),
        }
    };
    Ok(list(&metadata["packages"]).iter().map(package).collect())
}

/// Returns the targets of one of `kinds`, each as the name of its package and the path of its root
/// file in the tree.
pub(crate) fn targets(kinds: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let metadata = metadata()?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let mut targets = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let (name, file) = (package["name"].as_str(), target["src_path"].as_str());
            let is_wanted = target["kind"][0].as_str().is_some_and(|kind| kinds.contains(&kind));
            if let (Some(name), Some(file), true) = (name, file, is_wanted) {
                targets.push((name.to_owned(), Path::new(file).strip_prefix(root)?.to_owned()));
            }
        }
    }
    Ok(targets)
}

pub(crate) fn metadata() -> Result<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .context("failed to run cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[test]
fn crates_depend_only_on_allowed_crates() -> Result<()> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for package in packages()? {
        if PROGRAMS.contains(&&*package.name) {
            continue;
        }
        let name = &package.name;
        let allowed = match allowed.get(&**name) {
            Some(allowed) => allowed,
            None if package.folder.starts_with("/controllers/") => CONTROLLER,
            None => bail!("{name} is not in the table of allowed dependencies: add it"),
        };
        for dependency in &package.dependencies {
            let ours = dependency.name.starts_with("portreeve") && !is_of_a_shell(&package, dependency);
            let (from, to) = (&package.name, &dependency.name);
            ensure!(!ours || allowed.contains(&&**to), "{from} must not depend on {to}");
        }
    }
    Ok(())
}

#[test]
fn controllers_depend_on_no_runtime_and_no_client() -> Result<()> {
    for package in packages()? {
        if !package.folder.starts_with("/controllers/") {
            continue;
        }
        for dependency in &package.dependencies {
            let (from, to) = (&package.name, &dependency.name);
            if is_of_a_shell(&package, dependency) {
                continue;
            }
            ensure!(
                !NOT_IN_CONTROLLERS.contains(&&**to),
                "{from} must not depend on {to}: controllers decide, and the framework acts; only those in \
                 WITH_A_SHELL send requests themselves"
            );
        }
    }
    Ok(())
}

#[test]
fn pure_crates_depend_on_data_crates_only() -> Result<()> {
    let packages = packages()?;
    for (name, allowed) in PURE {
        let package = packages.iter().find(|package| package.name == *name);
        let package = package.with_context(|| format!("there is no crate {name}"))?;
        for dependency in &package.dependencies {
            let to = &dependency.name;
            ensure!(allowed.contains(&&**to), "{name} is pure and must not depend on {to}");
        }
    }
    Ok(())
}

#[test]
fn libraries_do_not_choose_the_api_version() -> Result<()> {
    for package in packages()? {
        if CHOOSES_API_VERSION.contains(&&*package.name) {
            continue;
        }
        for dependency in package.dependencies {
            let chosen = dependency.features.iter().find(|feature| feature.starts_with("v1_"));
            let name = &package.name;
            ensure!(
                dependency.name != "k8s-openapi" || chosen.is_none(),
                "{name} chooses the API version {chosen:?}: only binaries and tests may"
            );
        }
    }
    Ok(())
}

#[test]
fn every_crate_is_named_after_its_folder() -> Result<()> {
    for package in packages()? {
        // A crate in a subfolder of another one has both names: controllers/a/b is portreeve-a-b.
        let folder = package.folder.trim_matches('/').trim_end_matches("/Cargo.toml");
        let folder = folder
            .split_once('/')
            .map_or(folder, |(_, below)| below)
            .replace('/', "-");
        // The name of the binary's folder is free for the crate that authors use.
        let named = package.name == folder
            || package.name == format!("portreeve-{folder}")
            || (&*package.name, &*folder) == ("portreeve-cli", "portreeve");
        ensure!(
            named,
            "the package {} must have the name of its folder {}",
            package.name,
            package.folder
        );
    }
    Ok(())
}
