//! A namespace that is deleted, which ends only where a controller empties and finalizes it.

use std::time::Duration;

use anyhow::{Context, Result};
use kube::api::{ApiResource, DeleteParams, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use portreeve_testing::eventually;

/// The controller that does so.
pub(crate) const CONTROLLER: &str = "namespace-controller";

const NAME: &str = "namespace-that-goes";
/// Longer than the time for which namespace-controller waits before it deletes anything.
const LIMIT: Duration = Duration::from_mins(2);

/// Creates a namespace with an object, deletes it, and waits until it is gone.
pub(crate) async fn create_and_delete(client: &Client) -> Result<()> {
    let resource = |kind| ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    let namespaces: Api<DynamicObject> = Api::all_with(client.clone(), &resource("Namespace"));
    let maps: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAME, &resource("ConfigMap"));
    let parameters = PostParams::default();
    let namespace = DynamicObject::new(NAME, &resource("Namespace"));
    let created = namespaces.create(&parameters, &namespace).await;
    created.with_context(|| format!("failed to create namespace {NAME}"))?;
    let map = DynamicObject::new("content", &resource("ConfigMap"));
    let created = maps.create(&parameters, &map).await;
    created.with_context(|| format!("failed to create a ConfigMap in namespace {NAME}"))?;
    let deleted = namespaces.delete(NAME, &DeleteParams::default()).await;
    deleted.with_context(|| format!("failed to delete namespace {NAME}"))?;
    eventually(LIMIT, &format!("namespace {NAME} to be gone"), || async {
        let found = namespaces.get_metadata_opt(NAME).await?;
        anyhow::ensure!(found.is_none(), "it still exists");
        anyhow::Ok(())
    })
    .await?;
    println!("Deleted namespace {NAME}: {CONTROLLER} emptied it, and it is gone.");
    Ok(())
}
