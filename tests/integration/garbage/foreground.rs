//! Tests of owners that are deleted in the foreground, with blocking and non-blocking dependents.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use super::{collector::Collector, shared};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy, ensure_throughout},
    expected_objects::ExpectedObjects,
    object_builder::{ObjectBuilder, pod, replication_controller},
};

/// A finalizer that no controller handles.
const UNHANDLED: &str = "x/y";

#[tokio::test]
async fn test_solid_owner_does_not_block_waiting_owner() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-foreground1").await?;
    let mut expected_objects = ExpectedObjects::default();
    let doomed = expected_objects
        .create_one(&dynamic_client, replication_controller("test.rc.1"))
        .await?;
    let remaining = expected_objects
        .create_one(&dynamic_client, replication_controller("test.rc.2"))
        .await?;
    let pod = pod("pod").blocking(&doomed, true).owned_by(&remaining);
    let pod = expected_objects.create_one(&dynamic_client, pod).await?;

    expected_objects
        .delete(&dynamic_client, &doomed, Policy::Foreground)
        .await?;
    dynamic_client.wait_until_gone(&doomed).await?;
    let pod = dynamic_client.get(&pod).await?;
    let owners: Vec<_> = pod.owner_references().iter().map(|owner| &*owner.name).collect();
    ensure!(owners == ["test.rc.2"], "{owners:?}");
    expected_objects.verify(&dynamic_client).await
}

/// A cluster-scoped object cannot depend on a namespaced owner, so it is never deleted for it.
#[tokio::test]
async fn a_dependent_across_scopes_does_not_block() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-scopes").await?;
    let owner = dynamic_client.create(replication_controller("test.rc.1")).await?;
    let dependent = ObjectBuilder::new("rbac.authorization.k8s.io/v1", "ClusterRole", dynamic_client.name());
    let dependent = dynamic_client
        .create_for_cluster(dependent.blocking(&owner, true))
        .await?;
    dynamic_client.delete(&owner, Policy::Foreground).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    dynamic_client.get(&dependent).await?;
    dynamic_client.delete(&dependent, Policy::Background).await
}

#[tokio::test]
async fn test_non_blocking_owner_ref_does_not_block() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-foreground2").await?;
    let doomed = dynamic_client.create(replication_controller("test.rc.1")).await?;
    let unspecified = dynamic_client
        .create(pod("pod1").owned_by(&doomed).finalizer(UNHANDLED))
        .await?;
    let not_blocking = dynamic_client
        .create(pod("pod2").blocking(&doomed, false).finalizer(UNHANDLED))
        .await?;

    dynamic_client.delete(&doomed, Policy::Foreground).await?;
    dynamic_client.wait_until_gone(&doomed).await?;
    let pods = dynamic_client.list("v1", "Pod").await?;
    ensure!(pods.len() == 2, "{pods:?}");
    dynamic_client.get(&unspecified).await?;
    dynamic_client.get(&not_blocking).await?;
    Ok(())
}

#[tokio::test]
async fn test_double_deletion_with_finalizer() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-double-foreground").await?;
    let lucy = dynamic_client.create(pod("lucy").finalizer(UNHANDLED)).await?;
    for _ in 0..2 {
        dynamic_client.delete(&lucy, Policy::Foreground).await?;
        eventually(LIMIT, "only its own finalizer to be left", || async {
            let found = dynamic_client.get(&lucy).await?;
            ensure!(found.finalizers() == [UNHANDLED], "{:?}", found.finalizers());
            anyhow::Ok(())
        })
        .await?;
    }

    dynamic_client
        .patch(&lucy, json!({"metadata": {"finalizers": null}}))
        .await?;
    dynamic_client.wait_until_gone(&lucy).await
}

#[tokio::test]
async fn test_blocking_owner_ref_does_block() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "foo").await?;
    let doomed = dynamic_client.create(replication_controller("test.rc.1")).await?;
    let pod = pod("pod").blocking(&doomed, true).finalizer(UNHANDLED);
    let pod = dynamic_client.create(pod).await?;
    // The collector starts after the objects exist, so its graph contains them before it observes
    // the deletion.
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_synced().await?;

    dynamic_client.delete(&doomed, Policy::Foreground).await?;
    dynamic_client.catch_up().await?;
    ensure_throughout(Duration::from_secs(1), || async {
        dynamic_client.get(&doomed).await?;
        let pods = dynamic_client.list("v1", "Pod").await?;
        ensure!(pods.len() == 1, "{pods:?}");
        dynamic_client.get(&pod).await?;
        Ok(())
    })
    .await
}
