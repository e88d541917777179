//! The objects for a garbage collector: an owner with dependents, and objects without owners.

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::controller::{Controller, START_LIMIT};
use crate::objects::{Created, NAMESPACE, create_all};
use crate::progress::Progress;

/// The label selector of the measured family.
pub(crate) const LABEL: &str = "bench=family";

/// An owner and its dependents: small ConfigMaps, so that the kind adds little work.
pub(crate) struct Family {
    pub(crate) owner: Created,
    pub(crate) dependents: Vec<Created>,
}

impl Family {
    /// Creates a family. Each dependent has one owner reference, which blocks a foreground deletion
    /// of the owner if `is_blocking`.
    pub(crate) async fn create(client: &Client, count: usize, is_blocking: bool, progress: &Progress) -> Result<Self> {
        let api = api(client);
        let owner = Created::post(&api, object("owner", "family", 8, None)).await?;
        let dependents = (0..count).map(|index| {
            object(
                &format!("dependent-{index:05}"),
                "family",
                8,
                Some((&owner, is_blocking)),
            )
        });
        let dependents = create_all(&api, dependents, progress).await?;
        Ok(Self { owner, dependents })
    }
}

/// Creates objects of about `bytes` bytes without owners.
pub(crate) async fn create_load(client: &Client, count: usize, bytes: usize, progress: &Progress) -> Result<()> {
    let objects = (0..count).map(|index| object(&format!("object-{index:05}"), "load", bytes, None));
    create_all(&api(client), objects, progress).await?;
    Ok(())
}

/// Creates an owner with a dependent, deletes the owner, and waits until the collector has deleted
/// the dependent. By then its graph contains all earlier ConfigMaps, because watches and work
/// queues keep their order.
pub(crate) async fn has_caught_up(controller: &Controller, client: &Client) -> Result<()> {
    let api = api(client);
    let owner = Created::post(&api, object("canary-owner", "canary", 8, None)).await?;
    let dependent = Created::post(&api, object("canary", "canary", 8, Some((&owner, false)))).await?;
    let deleted = api.delete(&owner.name, &DeleteParams::background()).await;
    deleted.context("failed to delete the owner of the canary")?;
    let gone = || async {
        let left = api.get_metadata_opt(&dependent.name).await?;
        ensure!(left.is_none(), "it still exists");
        Ok(())
    };
    let what = "the canary to be collected";
    controller.guard(eventually(START_LIMIT, what, gone)).await
}

/// Returns the API of ConfigMaps as dynamic objects.
pub(crate) fn api(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

fn object(name: &str, part: &str, bytes: usize, owner: Option<(&Created, bool)>) -> Value {
    let references = owner.map(|(owner, is_blocking)| {
        json!([{
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner.name,
            "uid": owner.uid,
            "blockOwnerDeletion": is_blocking,
        }])
    });
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"bench": part},
            "ownerReferences": references,
        },
        "data": {"content": "x".repeat(bytes)},
    })
}
