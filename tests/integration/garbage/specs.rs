//! The specs of Kubernetes' end-to-end suite "Garbage collector" that need no other controller.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Api, Patch, PatchParams},
};
use portreeve_testing::eventually;
use serde_json::json;

use super::shared;
use crate::fixtures::test_crd::TestCrd;
use crate::fixtures::{
    LIMIT,
    dynamic_client::{Policy, ensure_throughout},
    object_builder::{pod, reference},
};

#[tokio::test]
async fn should_not_be_blocked_by_dependency_circle() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-circle").await?;
    let mut pods = Vec::new();
    for name in ["pod1", "pod2", "pod3"] {
        pods.push(dynamic_client.create(pod(name)).await?);
    }
    let api: Api<Pod> = Api::namespaced(dynamic_client.client().clone(), dynamic_client.name());
    for (index, pod) in pods.iter().enumerate() {
        let mut owner = reference(&pods[(index + 2) % 3]);
        owner["controller"] = true.into();
        owner["blockOwnerDeletion"] = true.into();
        let patch = Patch::Strategic(json!({"metadata": {"ownerReferences": [owner]}}));
        api.patch(&pod.name_any(), &PatchParams::default(), &patch).await?;
    }

    let first = pods.first().context("no pod was created")?;
    dynamic_client.delete(first, Policy::Foreground).await?;
    eventually(LIMIT, "all of them to be gone", || async {
        let pods = dynamic_client.list("v1", "Pod").await?;
        ensure!(pods.is_empty(), "{pods:?}");
        anyhow::Ok(())
    })
    .await
}

#[tokio::test]
async fn should_support_cascading_deletion_of_custom_resources() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-custom-cascade").await?;
    let crd = TestCrd::cluster_scoped(&dynamic_client).await?;
    let owner = dynamic_client.create_for_cluster(crd.instance("owner")).await?;
    let dependent = crd.instance("dependent").owned_by(&owner);
    let dependent = dynamic_client.create_for_cluster(dependent).await?;

    dynamic_client.delete(&owner, Policy::Background).await?;
    // The foreground deletion of the canary completes only when the collector watches the new
    // resource.
    let canary = dynamic_client.create_for_cluster(crd.instance("canary")).await?;
    dynamic_client.delete(&canary, Policy::Foreground).await?;
    dynamic_client.wait_until_gone(&canary).await?;
    dynamic_client.wait_until_gone(&dependent).await?;
    let owner = dynamic_client.find(&owner).await?;
    ensure!(owner.is_none(), "{owner:?}");
    crd.delete().await
}

#[tokio::test]
async fn should_support_orphan_deletion_of_custom_resources() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-custom-orphan").await?;
    let crd = TestCrd::cluster_scoped(&dynamic_client).await?;
    let owner = dynamic_client.create_for_cluster(crd.instance("owner")).await?;
    let dependent = crd.instance("dependent").owned_by(&owner);
    let dependent = dynamic_client.create_for_cluster(dependent).await?;

    dynamic_client.delete(&owner, Policy::OrphanDependents(true)).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    dynamic_client.catch_up().await?;
    ensure_throughout(Duration::from_secs(1), || async {
        let dependent = dynamic_client.get(&dependent).await?;
        ensure!(dependent.owner_references().is_empty(), "{dependent:?}");
        Ok(())
    })
    .await?;
    crd.delete().await
}
