//! Tests with custom resources as owners and as dependents.

use anyhow::Result;

use super::{collector::Collector, shared};
use crate::fixtures::test_crd::TestCrd;
use crate::fixtures::{
    dynamic_client::{DynamicClient, Policy},
    object_builder::config_map,
};

#[tokio::test]
async fn test_custom_resource_cascading_deletion() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("crd-cascading").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    let owner = dynamic_client.create(crd.instance("owner")).await?;
    let dependent = dynamic_client
        .create(crd.instance("dependent").owned_by(&owner))
        .await?;

    dynamic_client.delete(&owner, Policy::Foreground).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    dynamic_client.wait_until_gone(&dependent).await
}

#[tokio::test]
async fn test_mixed_relationships() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("crd-mixed").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    let custom_owner = dynamic_client.create(crd.instance("owner")).await?;
    let core_dependent = dynamic_client
        .create(config_map("dependent").owned_by(&custom_owner))
        .await?;
    let core_owner = dynamic_client.create(config_map("owner")).await?;
    let custom_dependent = dynamic_client
        .create(crd.instance("dependent").owned_by(&core_owner))
        .await?;

    dynamic_client.delete(&custom_owner, Policy::Foreground).await?;
    dynamic_client.wait_until_gone(&custom_owner).await?;
    dynamic_client.wait_until_gone(&core_dependent).await?;
    dynamic_client.get(&custom_dependent).await?;

    dynamic_client.delete(&core_owner, Policy::Foreground).await?;
    dynamic_client.wait_until_gone(&core_owner).await?;
    dynamic_client.wait_until_gone(&custom_dependent).await
}

#[tokio::test]
async fn test_crd_deletion_cascading() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("crd-mixed").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    delete_crd(&dynamic_client, collector, &crd).await?;
    crd.create_again().await?;
    delete_crd(&dynamic_client, collector, &crd).await
}

/// Deletes a CRD one of whose objects owns a ConfigMap, and waits until both objects are
/// gone.
async fn delete_crd(dynamic_client: &DynamicClient, collector: &Collector, crd: &TestCrd) -> Result<()> {
    let owner = dynamic_client.create(crd.instance("owner")).await?;
    let dependent = dynamic_client.create(config_map("dependent").owned_by(&owner)).await?;
    collector.wait_until_observes(&[&owner, &dependent]).await?;

    crd.delete().await?;
    dynamic_client.wait_until_gone(&owner).await?;
    dynamic_client.wait_until_gone(&dependent).await
}
