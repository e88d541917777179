//! Custom resources, which own and are owned.

use anyhow::Result;

use super::{
    collector::Collector,
    definition::Definition,
    draft::config_map,
    shared,
    yard::{Policy, Yard},
};

#[tokio::test]
async fn test_custom_resource_cascading_deletion() -> Result<()> {
    let (yard, _) = shared::yard("crd-cascading").await?;
    let definition = Definition::namespaced(&yard).await?;
    let owner = yard.create(definition.instance("owner")).await?;
    let dependent = yard.create(definition.instance("dependent").owned_by(&owner)).await?;

    yard.delete(&owner, Policy::Foreground).await?;
    yard.wait_until_gone(&owner).await?;
    yard.wait_until_gone(&dependent).await
}

#[tokio::test]
async fn test_mixed_relationships() -> Result<()> {
    let (yard, _) = shared::yard("crd-mixed").await?;
    let definition = Definition::namespaced(&yard).await?;
    let custom_owner = yard.create(definition.instance("owner")).await?;
    let core_dependent = yard.create(config_map("dependent").owned_by(&custom_owner)).await?;
    let core_owner = yard.create(config_map("owner")).await?;
    let custom_dependent = yard
        .create(definition.instance("dependent").owned_by(&core_owner))
        .await?;

    yard.delete(&custom_owner, Policy::Foreground).await?;
    yard.wait_until_gone(&custom_owner).await?;
    yard.wait_until_gone(&core_dependent).await?;
    yard.get(&custom_dependent).await?;

    yard.delete(&core_owner, Policy::Foreground).await?;
    yard.wait_until_gone(&core_owner).await?;
    yard.wait_until_gone(&custom_dependent).await
}

#[tokio::test]
async fn test_crd_deletion_cascading() -> Result<()> {
    let (yard, collector) = shared::yard("crd-mixed").await?;
    let definition = Definition::namespaced(&yard).await?;
    delete_definition(&yard, collector, &definition).await?;
    definition.create_again().await?;
    delete_definition(&yard, collector, &definition).await
}

/// Deletes a definition with an object that owns another.
async fn delete_definition(yard: &Yard, collector: &Collector, definition: &Definition) -> Result<()> {
    let owner = yard.create(definition.instance("owner")).await?;
    let dependent = yard.create(config_map("dependent").owned_by(&owner)).await?;
    collector.wait_until_observes(&[&owner, &dependent]).await?;

    definition.delete().await?;
    yard.wait_until_gone(&owner).await?;
    yard.wait_until_gone(&dependent).await
}
