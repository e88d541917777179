//! Tests with a resource that cannot be listed, because its conversion webhook is missing.

use std::fs;

use anyhow::{Result, ensure};
use portreeve_testing::ControlPlane;

use super::{collector::Collector, test_crd::TestCrd};
use crate::fixtures::{
    dynamic_client::{DynamicClient, Policy},
    object_builder::{pod, replication_controller},
};

#[tokio::test]
async fn test_cascading_delete_on_crd_conversion_failure() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-cache-sync-fail").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    dynamic_client.create(crd.instance("test")).await?;
    let certificate = fs::read(plane.folder().join("apiserver.crt"))?;
    crd.break_conversion(&certificate).await?;
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_not_synced().await?;

    let owner = dynamic_client.create(replication_controller("test.rc.1")).await?;
    let controllers = dynamic_client.list("v1", "ReplicationController").await?;
    ensure!(controllers.len() == 1, "{controllers:?}");
    let pod = dynamic_client.create(pod("test.pod.1").owned_by(&owner)).await?;
    let pods = dynamic_client.list("v1", "Pod").await?;
    ensure!(pods.len() == 1, "{pods:?}");

    dynamic_client.delete(&owner, Policy::OrphanDependents(false)).await?;
    collector.wait_until_not_in_graph(&owner).await?;
    dynamic_client.wait_until_gone(&pod).await?;
    // The resource still cannot be listed.
    ensure!(!collector.is_synced().await?, "everything is synced");
    Ok(())
}
