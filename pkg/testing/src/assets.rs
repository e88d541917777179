//! Finds the server binaries, with the same lookup as `hack/controlplane/build`, which builds them.
//! This module builds nothing.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// The `go.mod` file that pins the versions; `hack/controlplane/build` reads it too.
const GO_MOD: &str = include_str!("../../../hack/controlplane/go.mod");

/// Returns the path of the binary of `server`: `etcd`, `kube-apiserver` or
/// `kube-controller-manager`.
///
/// The lookup order is `TEST_ASSET_<SERVER>`, the folder `KUBEBUILDER_ASSETS`, and the cache that
/// `make control-plane` fills.
///
/// # Errors
/// Returns an error if no place has the binary, or if `TEST_ASSET_<SERVER>` names no file.
pub fn server_binary(server: &str) -> Result<PathBuf> {
    let variable = format!("TEST_ASSET_{}", server.replace('-', "_").to_uppercase());
    if let Some(path) = path_from(&variable) {
        if !path.is_file() {
            bail!("{variable} is set to {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    let cache = cache()?;
    let found = path_from("KUBEBUILDER_ASSETS")
        .into_iter()
        .chain([cache.clone()])
        .map(|folder| folder.join(server))
        .find(|binary| binary.is_file());
    let target = if server == "kube-controller-manager" {
        "hack/controlplane/build kube-controller-manager"
    } else {
        "make control-plane"
    };
    found.with_context(|| {
        format!(
            "no {server} in {}: run `{target}` once, or set {variable} or KUBEBUILDER_ASSETS",
            cache.display()
        )
    })
}

/// Returns the folder that `hack/controlplane/build` fills, one per set of versions and platform.
fn cache() -> Result<PathBuf> {
    let root = match path_from("PORTREEVE_CACHE") {
        Some(root) => root,
        None => match path_from("XDG_CACHE_HOME") {
            Some(caches) => caches.join("portreeve"),
            None => path_from("HOME").context("HOME is not set")?.join(".cache/portreeve"),
        },
    };
    let etcd = required_version(GO_MOD, "go.etcd.io/etcd/server/v3").context("go.mod does not require etcd")?;
    let kubernetes = required_version(GO_MOD, "k8s.io/kubernetes").context("go.mod does not require Kubernetes")?;
    // Go's names for platforms that Rust names differently.
    let system = match env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    let processor = match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    Ok(root
        .join("controlplane")
        .join(format!("etcd-{etcd}_kubernetes-{kubernetes}_{system}-{processor}")))
}

/// Returns a path from an environment variable. As in the shell, an empty variable counts as unset.
pub(crate) fn path_from(variable: &str) -> Option<PathBuf> {
    env::var_os(variable)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(module))
            .then(|| words.next()?.strip_prefix('v'))
            .flatten()
    })
}
