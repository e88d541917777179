//! YAML manifests, applied as an administrator.

use anyhow::{Context, Result};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use serde_json::Value;

/// Parses the documents of a YAML stream.
pub(crate) fn documents(yaml: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(yaml).context("failed to parse the YAML")
}

/// Applies a document in the namespace that it names, or else in `namespace`. Without either, the
/// object is cluster-scoped.
pub(crate) async fn apply(
    client: &Client,
    document: &Value,
    namespace: Option<&str>,
    parameters: &PatchParams,
) -> Result<DynamicObject> {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let kind = GroupVersionKind::gvk(group, version, text("/kind"));
    let resource = ApiResource::from_gvk(&kind);
    let own = document.pointer("/metadata/namespace").and_then(Value::as_str);
    let api: Api<DynamicObject> = match own.or(namespace) {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = text("/metadata/name");
    let applied = api.patch(name, parameters, &Patch::Apply(document)).await;
    applied.with_context(|| format!("failed to apply {} {name}", text("/kind")))
}
