//! Tests of the static binary that `make image-binary` builds for the image.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kube::api::ListParams;
use portreeve_testing::{ControlPlane, Process, Signal, eventually, free_port};

use crate::fixtures::{
    LIMIT,
    admin::{Admin, OPEN},
    daemon::printed,
    manifests,
    namespace::NamespaceFixture,
    rbac,
    repository::root,
};

/// Returns the path of the binary that `make image-binary` built. Tests do not build it, since it
/// needs another profile.
fn binary() -> Result<PathBuf> {
    let path = root().join("target/image/portreeve");
    ensure!(
        path.is_file(),
        "{} does not exist; run `make image-binary`",
        path.display()
    );
    Ok(path)
}

fn half(elf: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?).into())
}

fn word(elf: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(elf.get(at..at + 4)?.try_into().ok()?)).ok()
}

fn long(elf: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(elf.get(at..at + 8)?.try_into().ok()?)).ok()
}

/// Returns the types of the program headers of an ELF file.
fn segments(elf: &[u8]) -> Option<Vec<usize>> {
    let (start, size, count) = (long(elf, 32)?, half(elf, 54)?, half(elf, 56)?);
    (0..count).map(|index| word(elf, start + index * size)).collect()
}

#[test]
fn the_binary_is_linked_statically() -> Result<()> {
    const LOAD: usize = 1;
    const INTERPRETER: usize = 3;
    let elf = std::fs::read(binary()?)?;
    ensure!(
        elf.starts_with(b"\x7fELF\x02\x01"),
        "the binary is not a 64-bit little-endian ELF file"
    );
    let segments = segments(&elf).context("the binary has no program headers")?;
    ensure!(segments.contains(&LOAD), "{segments:?}");
    ensure!(!segments.contains(&INTERPRETER), "the binary needs a dynamic loader");
    Ok(())
}

#[test]
fn the_image_and_the_manifests_agree_on_the_user() -> Result<()> {
    let containerfile = std::fs::read_to_string(root().join("Containerfile"))?;
    ensure!(containerfile.contains("\nFROM scratch\n") && containerfile.contains("\nUSER 65532:65532\n"));
    let base = std::fs::read_to_string(root().join("deploy/kustomize/base/deployment.yaml"))?;
    ensure!(base.contains("runAsUser: 65532\n") && base.contains("runAsGroup: 65532\n"));
    Ok(())
}

#[tokio::test]
async fn the_image_binary_leads_reconciles_and_exits_cleanly_with_the_printed_rbac() -> Result<()> {
    let binary = binary()?;
    let plane = ControlPlane::pooled().await?;
    let system = plane.namespace("portreeve-system").await?;
    manifests::apply_all(system.client(), &printed(&["crds"])?).await?;
    let within = format!("--namespace={}", system.name());
    let lease = format!("--leader-elect-resource-namespace={}", system.name());
    rbac::apply_and_wait(system.client(), system.name(), &printed(&["rbac", &within, &lease])?).await?;
    let kubeconfig = plane
        .service_account_kubeconfig(system.name(), "portreeve", Vec::new())
        .await?;
    let daemon = start(&plane, &binary, &kubeconfig, &lease).await?;
    let acquired = |line: &str| line.contains("acquired the lease") && line.contains("pod-of-the-image_");
    daemon.wait_for_log(LIMIT, acquired).await?;
    let fixture = NamespaceFixture::new(&plane, "image").await?;
    // The daemon is ready before the new definitions are served.
    let foos = fixture.foos();
    let any = ListParams::default().limit(1);
    eventually(LIMIT, "Foos to be served", || foos.list(&any)).await?;
    fixture.ready_foo("web", 1).await?;
    daemon.signal(Signal::TERM)?;
    let status = daemon.wait(LIMIT).await?;
    ensure!(status.success(), "{status}{}", daemon.log_tail());
    Ok(())
}

/// Starts the binary as in a Pod, and returns once it is ready.
async fn start(plane: &ControlPlane, binary: &Path, kubeconfig: &Path, lease: &str) -> Result<Process> {
    let admin = Admin { port: free_port()? };
    let (kubeconfig, port) = (
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--secure-port={}", admin.port),
    );
    let args = [&*kubeconfig, &*port, "--bind-address=127.0.0.1", OPEN, lease];
    let daemon = plane.spawn("image", binary, &args, &[("POD_NAME", "pod-of-the-image")])?;
    tokio::select! {
        ready = admin.wait_until_ready() => ready.with_context(|| daemon.log_tail())?,
        end = daemon.wait(LIMIT) => anyhow::bail!("the daemon ended with {:?}{}", end?, daemon.log_tail()),
    }
    Ok(daemon)
}
