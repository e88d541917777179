//! The binary that goes into the image, which is all that is in it: static, and at work on the real apiserver.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kube::api::PatchParams;
use portreeve_testing::{ControlPlane, Process, Signal, free_port};

use crate::{
    shared,
    support::{
        LIMIT,
        admin::{Admin, OPEN},
        daemon::printed,
        fixtures::NamespaceFixture,
        manifests,
    },
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `make image-binary` has built it: a test does not build another profile of what it is part of.
fn binary() -> Result<PathBuf> {
    let path = root().join("target/image/portreeve");
    ensure!(
        path.is_file(),
        "{} is not there: run `make image-binary`",
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

/// The types of an ELF file's program headers.
fn segments(elf: &[u8]) -> Option<Vec<usize>> {
    let (start, size, count) = (long(elf, 32)?, half(elf, 54)?, half(elf, 56)?);
    (0..count).map(|index| word(elf, start + index * size)).collect()
}

/// The size of an ELF file's section, by its name.
fn section(elf: &[u8], name: &str) -> Option<usize> {
    let (start, size, count) = (long(elf, 40)?, half(elf, 58)?, half(elf, 60)?);
    let header = |index: usize| start + index * size;
    let names = long(elf, header(half(elf, 62)?) + 24)?;
    let wanted = format!("{name}\0");
    let is_wanted = |&at: &usize| {
        let tail = word(elf, at).and_then(|offset| elf.get(names + offset..));
        tail.is_some_and(|tail| tail.starts_with(wanted.as_bytes()))
    };
    let found = (0..count).map(header).find(is_wanted)?;
    long(elf, found + 32)
}

#[test]
fn the_binary_asks_for_no_loader_and_no_library() -> Result<()> {
    const LOAD: usize = 1;
    const INTERPRETER: usize = 3;
    let elf = std::fs::read(binary()?)?;
    ensure!(
        elf.starts_with(b"\x7fELF\x02\x01"),
        "it is no 64-bit little-endian ELF file"
    );
    let segments = segments(&elf).context("it has program headers")?;
    ensure!(segments.contains(&LOAD), "{segments:?}");
    ensure!(!segments.contains(&INTERPRETER), "it is linked dynamically");
    Ok(())
}

/// A compiler that names functions in another way would find none of those that `hack/image/order.ld` names, and nobody would notice.
#[test]
fn what_runs_lies_side_by_side_in_the_binary() -> Result<()> {
    let elf = std::fs::read(binary()?)?;
    let used = section(&elf, ".text.used").context("nothing was put in order")?;
    let rest = section(&elf, ".text").context("it has code")?;
    let percent = used * 100 / (used + rest);
    ensure!(
        (25..60).contains(&percent),
        "{percent} % of the code is named as what runs: run hack/image/order"
    );
    Ok(())
}

#[test]
fn image_and_manifests_agree_on_the_user() -> Result<()> {
    let containerfile = std::fs::read_to_string(root().join("Containerfile"))?;
    ensure!(containerfile.contains("\nFROM scratch\n") && containerfile.contains("\nUSER 65532:65532\n"));
    let base = std::fs::read_to_string(root().join("deploy/kustomize/base/deployment.yaml"))?;
    ensure!(base.contains("runAsUser: 65532\n") && base.contains("runAsGroup: 65532\n"));
    Ok(())
}

#[tokio::test]
async fn the_image_s_binary_leads_and_works_with_the_printed_rights_and_ends_cleanly() -> Result<()> {
    let binary = binary()?;
    let plane = ControlPlane::start().await?;
    let system = plane.namespace("portreeve-system").await?;
    let force = PatchParams::apply("an-administrator").force();
    for definition in manifests::documents(&printed(&["crds"])?)? {
        manifests::apply(system.client(), &definition, None, &force).await?;
    }
    let within = format!("--namespace={}", system.name());
    let lease = format!("--leader-elect-resource-namespace={}", system.name());
    shared::apply_and_wait(system.client(), system.name(), &printed(&["rbac", &within, &lease])?).await?;
    let kubeconfig = plane
        .service_account_kubeconfig(system.name(), "portreeve", Vec::new())
        .await?;
    let daemon = start(&plane, &binary, &kubeconfig, &lease).await?;
    let acquired = |line: &str| line.contains("acquired the lease") && line.contains("pod-of-the-image_");
    daemon.wait_for_log(LIMIT, acquired).await?;
    let fixture = NamespaceFixture::new(&plane, "image").await?;
    fixture.settled_foo("web", 1).await?;
    daemon.signal(Signal::TERM)?;
    let status = daemon.wait(LIMIT).await?;
    ensure!(status.success(), "{status}{}", daemon.log_tail());
    Ok(())
}

/// Starts it as in a Pod, and returns once it is ready.
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
        end = daemon.wait(LIMIT) => anyhow::bail!("it ended with {:?}{}", end?, daemon.log_tail()),
    }
    Ok(daemon)
}
