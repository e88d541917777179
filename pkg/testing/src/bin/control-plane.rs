//! Starts a control plane for manual use, prints where it is, and stops it on Ctrl-C. It runs no
//! controllers; `make run` adds ours.

use std::io::{Write, stdout};

use anyhow::{Context, Result};
use portreeve_testing::ControlPlane;

#[tokio::main]
async fn main() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let mut out = stdout().lock();
    writeln!(out, "etcd {}", plane.etcd().pid()?)?;
    writeln!(out, "kube-apiserver {}", plane.apiserver().pid()?)?;
    writeln!(out, "folder {}", plane.folder().display())?;
    writeln!(out, "kubeconfig {}", plane.kubeconfig().display())?;
    drop(out);
    tokio::signal::ctrl_c().await.context("failed to wait for Ctrl-C")
}
