//! The arrows of ARCHITECTURE.md: each crate and what it may depend on.

use std::{collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::root;

/// Ours, and which of ours each may depend on outside of its tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("portreeve-api", &[]),
    ("portreeve-cron", &[]),
    ("portreeve-workqueue", &[]),
    ("portreeve-serving", &[]),
    ("portreeve-testing", &[]),
    ("portreeve-client", &["portreeve-api"]),
    ("portreeve-informer", &["portreeve-api", "portreeve-client"]),
    ("portreeve-leader", &["portreeve-client"]),
    (
        "portreeve-reconcile",
        &[
            "portreeve-api",
            "portreeve-client",
            "portreeve-informer",
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
            "portreeve-reconcile",
            "portreeve-serving",
            "portreeve-workqueue",
        ],
    ),
    (
        "portreeve-bench",
        &["portreeve-api", "portreeve-garbagecollector", "portreeve-testing"],
    ),
    ("portreeve-run", &["portreeve-testing"]),
    ("portreeve-tests", &[]),
];
/// What every controller may depend on, of ours.
const CONTROLLER: &[&str] = &[
    "portreeve-api",
    "portreeve-cron",
    "portreeve-informer",
    "portreeve-reconcile",
];
/// The one that watches what it finds and asks for what it does not know: its shell acts, and all else in it decides.
const WITH_A_SHELL: (&str, &[&str]) = (
    "portreeve-garbagecollector",
    &[
        "portreeve-client",
        "portreeve-workqueue",
        "tokio",
        "prometheus",
        "tracing",
    ],
);
/// What no controller may: it decides, and others act.
const NOT_IN_CONTROLLERS: &[&str] = &[
    "tokio",
    "tokio-util",
    "hyper",
    "hyper-util",
    "reqwest",
    "prometheus",
    "tracing",
];
/// What may build on the daemon: programs of its kind.
const PROGRAMS: &[&str] = &["portreeve", "portreeve-example"];
/// Where the API version of k8s-openapi may be chosen outside of tests.
const CHOOSES_API_VERSION: &[&str] = &["portreeve", "portreeve-run", "portreeve-testing"];

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
    package.name == WITH_A_SHELL.0 && WITH_A_SHELL.1.contains(&&*dependency.name)
}

/// The packages of the workspace with what they depend on outside of their tests.
fn packages() -> Result<Vec<Package>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .context("failed to run cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
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

#[test]
fn arrows_between_crates_go_one_way() -> Result<()> {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for package in packages()? {
        if PROGRAMS.contains(&&*package.name) {
            continue;
        }
        let allowed = if package.folder.starts_with("/controllers/") {
            CONTROLLER
        } else {
            let name = &package.name;
            *allowed
                .get(&**name)
                .with_context(|| format!("{name} is not in the table of arrows: add it"))?
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
fn controllers_hold_no_runtime_and_no_client() -> Result<()> {
    for package in packages()? {
        if !package.folder.starts_with("/controllers/") {
            continue;
        }
        for dependency in &package.dependencies {
            let (from, to) = (&package.name, &dependency.name);
            if is_of_a_shell(&package, dependency) {
                continue;
            }
            ensure!(!NOT_IN_CONTROLLERS.contains(&&**to), "{from} must not depend on {to}");
        }
    }
    Ok(())
}

#[test]
fn libraries_leave_the_api_version_open() -> Result<()> {
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
fn every_crate_is_named_for_its_folder() -> Result<()> {
    for package in packages()? {
        let folder = package
            .folder
            .trim_end_matches("/Cargo.toml")
            .rsplit('/')
            .next()
            .unwrap_or_default();
        let named = package.name == folder || package.name == format!("portreeve-{folder}");
        ensure!(named, "{} is in the folder {}", package.name, package.folder);
    }
    Ok(())
}
