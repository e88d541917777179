//! A resource that cannot be listed.

use std::fs;

use anyhow::{Result, ensure};
use portreeve_testing::ControlPlane;

use super::{
    collector::Collector,
    definition::Definition,
    draft::{pod, replication_controller},
    yard::{Policy, Yard},
};

#[tokio::test]
async fn test_cascading_delete_on_crd_conversion_failure() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let yard = Yard::new(&plane, "gc-cache-sync-fail").await?;
    let definition = Definition::namespaced(&yard).await?;
    yard.create(definition.instance("test")).await?;
    let certificate = fs::read(plane.folder().join("apiserver.crt"))?;
    definition.break_conversion(&certificate).await?;
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_not_synced().await?;

    let owner = yard.create(replication_controller("test.rc.1")).await?;
    let controllers = yard.list("v1", "ReplicationController").await?;
    ensure!(controllers.len() == 1, "{controllers:?}");
    let pod = yard.create(pod("test.pod.1").owned_by(&owner)).await?;
    let pods = yard.list("v1", "Pod").await?;
    ensure!(pods.len() == 1, "{pods:?}");

    yard.delete(&owner, Policy::OrphanDependents(false)).await?;
    collector.wait_until_forgets(&owner).await?;
    yard.wait_until_gone(&pod).await?;
    // Or else the resource was not as bad as it was meant to be.
    ensure!(!collector.is_synced().await?, "everything is synced");
    Ok(())
}
