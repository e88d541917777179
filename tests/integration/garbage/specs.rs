//! Specs of Kubernetes' end-to-end suite "Garbage collector": those that need no other controller.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Api, Patch, PatchParams},
};
use portreeve_testing::eventually;
use serde_json::json;

use super::{
    definition::Definition,
    draft::{pod, reference},
    shared,
    yard::{Policy, stays},
};
use crate::support::LIMIT;

#[tokio::test]
async fn should_not_be_blocked_by_dependency_circle() -> Result<()> {
    let (yard, _) = shared::yard("gc-circle").await?;
    let mut pods = Vec::new();
    for name in ["pod1", "pod2", "pod3"] {
        pods.push(yard.create(pod(name)).await?);
    }
    let api: Api<Pod> = Api::namespaced(yard.client().clone(), yard.name());
    for (place, pod) in pods.iter().enumerate() {
        let mut owner = reference(&pods[(place + 2) % 3]);
        owner["controller"] = true.into();
        owner["blockOwnerDeletion"] = true.into();
        let patch = Patch::Strategic(json!({"metadata": {"ownerReferences": [owner]}}));
        api.patch(&pod.name_any(), &PatchParams::default(), &patch).await?;
    }

    let first = pods.first().context("there are three")?;
    yard.delete(first, Policy::Foreground).await?;
    eventually(LIMIT, "all of them to be gone", || async {
        let pods = yard.list("v1", "Pod").await?;
        ensure!(pods.is_empty(), "{pods:?}");
        anyhow::Ok(())
    })
    .await
}

#[tokio::test]
async fn should_support_cascading_deletion_of_custom_resources() -> Result<()> {
    let (yard, _) = shared::yard("gc-custom-cascade").await?;
    let definition = Definition::for_cluster(&yard).await?;
    let owner = yard.create_for_cluster(definition.instance("owner")).await?;
    let dependent = definition.instance("dependent").owned_by(&owner);
    let dependent = yard.create_for_cluster(dependent).await?;

    yard.delete(&owner, Policy::Background).await?;
    // Somebody must know of the resource for this one to go.
    let canary = yard.create_for_cluster(definition.instance("canary")).await?;
    yard.delete(&canary, Policy::Foreground).await?;
    yard.wait_until_gone(&canary).await?;
    yard.wait_until_gone(&dependent).await?;
    let owner = yard.find(&owner).await?;
    ensure!(owner.is_none(), "{owner:?}");
    definition.delete().await
}

#[tokio::test]
async fn should_support_orphan_deletion_of_custom_resources() -> Result<()> {
    let (yard, _) = shared::yard("gc-custom-orphan").await?;
    let definition = Definition::for_cluster(&yard).await?;
    let owner = yard.create_for_cluster(definition.instance("owner")).await?;
    let dependent = definition.instance("dependent").owned_by(&owner);
    let dependent = yard.create_for_cluster(dependent).await?;

    yard.delete(&owner, Policy::OrphanDependents(true)).await?;
    yard.wait_until_gone(&owner).await?;
    yard.wait_for_round().await?;
    stays(Duration::from_secs(1), || async {
        let dependent = yard.get(&dependent).await?;
        ensure!(dependent.owner_references().is_empty(), "{dependent:?}");
        Ok(())
    })
    .await?;
    definition.delete().await
}
