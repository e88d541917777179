//! Owners that are deleted in the foreground, and wait for their dependents or do not.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Api, Patch, PatchParams},
};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{from_value, json};

use super::{
    collector::Collector,
    draft::{pod, replication_controller},
    judge::Ledger,
    shared,
    yard::{Policy, Yard, stays},
};
use crate::support::LIMIT;

/// A finalizer that no controller handles.
const UNHANDLED: &str = "x/y";

#[tokio::test]
async fn test_solid_owner_does_not_block_waiting_owner() -> Result<()> {
    let (yard, _) = shared::yard("gc-foreground1").await?;
    let mut ledger = Ledger::default();
    let doomed = ledger.create_one(&yard, replication_controller("test.rc.1")).await?;
    let remaining = ledger.create_one(&yard, replication_controller("test.rc.2")).await?;
    let pod = pod("pod").blocking(&doomed, true).owned_by(&remaining);
    let pod = ledger.create_one(&yard, pod).await?;

    ledger.delete(&yard, &doomed, Policy::Foreground).await?;
    yard.wait_until_gone(&doomed).await?;
    let pod = yard.get(&pod).await?;
    let owners: Vec<_> = pod.owner_references().iter().map(|owner| &*owner.name).collect();
    ensure!(owners == ["test.rc.2"], "{owners:?}");
    ledger.judge(&yard).await
}

#[tokio::test]
async fn test_non_blocking_owner_ref_does_not_block() -> Result<()> {
    let (yard, _) = shared::yard("gc-foreground2").await?;
    let doomed = yard.create(replication_controller("test.rc.1")).await?;
    let unsaid = yard.create(pod("pod1").owned_by(&doomed).finalizer(UNHANDLED)).await?;
    let denied = yard
        .create(pod("pod2").blocking(&doomed, false).finalizer(UNHANDLED))
        .await?;

    yard.delete(&doomed, Policy::Foreground).await?;
    yard.wait_until_gone(&doomed).await?;
    let pods = yard.list("v1", "Pod").await?;
    ensure!(pods.len() == 2, "{pods:?}");
    yard.get(&unsaid).await?;
    yard.get(&denied).await?;
    Ok(())
}

#[tokio::test]
async fn test_double_deletion_with_finalizer() -> Result<()> {
    let (yard, _) = shared::yard("gc-double-foreground").await?;
    let lucy = yard.create(pod("lucy").finalizer(UNHANDLED)).await?;
    for _ in 0..2 {
        yard.delete(&lucy, Policy::Foreground).await?;
        eventually(LIMIT, "only the finalizer of its own to be left", || async {
            let found = yard.get(&lucy).await?;
            ensure!(found.finalizers() == [UNHANDLED], "{:?}", found.finalizers());
            anyhow::Ok(())
        })
        .await?;
    }

    let pods: Api<Pod> = Api::namespaced(yard.client().clone(), yard.name());
    let patch = from_value(json!([{"op": "remove", "path": "/metadata/finalizers"}]))?;
    pods.patch("lucy", &PatchParams::default(), &Patch::<Pod>::Json(patch))
        .await?;
    yard.wait_until_gone(&lucy).await
}

#[tokio::test]
async fn test_blocking_owner_ref_does_block() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let yard = Yard::new(&plane, "foo").await?;
    let doomed = yard.create(replication_controller("test.rc.1")).await?;
    let pod = pod("pod").blocking(&doomed, true).finalizer(UNHANDLED);
    let pod = yard.create(pod).await?;
    // What was there before the collector is in its graph before it hears of the deletion.
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_synced().await?;

    yard.delete(&doomed, Policy::Foreground).await?;
    yard.wait_for_round().await?;
    stays(Duration::from_secs(1), || async {
        yard.get(&doomed).await?;
        let pods = yard.list("v1", "Pod").await?;
        ensure!(pods.len() == 1, "{pods:?}");
        yard.get(&pod).await?;
        Ok(())
    })
    .await
}
