//! What a garbage collector works on: an owner with its dependents, and objects that nobody owns.

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::controller::{Controller, START_LIMIT};
use crate::objects::{Created, NAMESPACE, create_all};
use crate::progress::Progress;

/// By what a watch tells the family that is measured from the canary and from the namespace's own objects.
pub(crate) const LABEL: &str = "bench=family";

/// An owner and those that depend on it: small ConfigMaps, so that the work is that of the collector and not of some kind.
pub(crate) struct Family {
    pub(crate) owner: Created,
    pub(crate) dependents: Vec<Created>,
}

impl Family {
    /// Creates it. Each dependent has one owner reference, which may keep a foreground deletion of the owner waiting.
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

/// Creates objects of about so many bytes that nobody owns.
pub(crate) async fn create_load(client: &Client, count: usize, bytes: usize, progress: &Progress) -> Result<()> {
    let objects = (0..count).map(|index| object(&format!("object-{index:05}"), "load", bytes, None));
    create_all(&api(client), objects, progress).await?;
    Ok(())
}

/// Waits until a collector has collected the dependent of an owner that is made now and deleted at once. By then its graph has all
/// ConfigMaps that were made before, as both a watch and a work queue keep their order.
pub(crate) async fn has_caught_up(controller: &Controller, client: &Client) -> Result<()> {
    let api = api(client);
    let owner = Created::post(&api, object("canary-owner", "canary", 8, None)).await?;
    let dependent = Created::post(&api, object("canary", "canary", 8, Some((&owner, false)))).await?;
    let deleted = api.delete(&owner.name, &DeleteParams::background()).await;
    deleted.context("failed to delete the owner of the canary")?;
    let gone = || async {
        let left = api.get_metadata_opt(&dependent.name).await?;
        ensure!(left.is_none(), "it is still there");
        Ok(())
    };
    let what = "the canary to be collected";
    controller.guard(eventually(START_LIMIT, what, gone)).await
}

/// ConfigMaps, as what they have in common with everything else.
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
