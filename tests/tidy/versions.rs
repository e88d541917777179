//! Single versions: a binary with two Kubernetes stacks or two TLS stacks is a mistake in the lock
//! file.

use std::{collections::BTreeMap, fs};

use anyhow::{Result, ensure};

use crate::root;

const ONE_VERSION: &[&str] = &[
    "http",
    "hyper",
    "hyper-rustls",
    "hyper-util",
    "jiff",
    "k8s-openapi",
    "kube",
    "kube-client",
    "kube-core",
    "kube-derive",
    "kube-runtime",
    "prometheus",
    "ring",
    "rustls",
    "rustls-webpki",
    "schemars",
    "tokio",
    "tokio-rustls",
    "tower",
    "tracing",
];
const NEVER: &[&str] = &["aws-lc-rs", "aws-lc-sys", "native-tls", "openssl", "openssl-sys"];

fn versions() -> Result<BTreeMap<String, Vec<String>>> {
    let lock = fs::read_to_string(root().join("Cargo.lock"))?;
    let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let value = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.trim_start_matches(" = ");
        Some(value.trim_matches('"').to_owned())
    };
    let mut name = String::new();
    for line in lock.lines() {
        if let Some(found) = value(line, "name") {
            name = found;
        } else if let Some(version) = value(line, "version").filter(|_| !name.is_empty()) {
            versions.entry(std::mem::take(&mut name)).or_default().push(version);
        }
    }
    Ok(versions)
}

#[test]
fn the_lock_file_has_one_kubernetes_stack_and_one_tls_stack() -> Result<()> {
    let versions = versions()?;
    for name in ONE_VERSION {
        let found = versions.get(*name).map_or(&[][..], Vec::as_slice);
        ensure!(
            found.len() == 1,
            "Cargo.lock has {} versions of {name}: {found:?}",
            found.len()
        );
    }
    for name in NEVER {
        ensure!(!versions.contains_key(*name), "Cargo.lock has {name}");
    }
    Ok(())
}
