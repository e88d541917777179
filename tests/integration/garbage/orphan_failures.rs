//! Orphanings whose requests are rejected or undone.

use std::fmt::Debug;

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBinding};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
};
use portreeve_testing::{ControlPlane, eventually};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{collector::Collector, shared, unlistable::wait_until_released};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy},
    manifests,
    object_builder::{config_map, secret},
};

const VALIDATING: &str = "ValidatingAdmissionPolicy";
const MUTATING: &str = "MutatingAdmissionPolicy";
const REFUSED: &str = "GarbageCollectionRefused";
const UNDONE: &str = "an admission policy or webhook has undone it";

/// Applies an admission policy for updates of ConfigMaps and Secrets in the namespace, and waits
/// until a dry run shows its effect.
async fn apply_policy(
    dynamic_client: &DynamicClient,
    kind: &str,
    mut spec: Value,
    is_enforced: impl AsyncFn() -> Result<bool>,
) -> Result<()> {
    let name = dynamic_client.name();
    spec["matchConstraints"] = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
            "resources": ["configmaps", "secrets"]}],
    });
    let mut binding = json!({ "policyName": name });
    if kind == VALIDATING {
        binding["validationActions"] = json!(["Deny"]);
    }
    let force = PatchParams::apply("an-administrator").force();
    for (kind, spec) in [(kind.to_owned(), spec), (format!("{kind}Binding"), binding)] {
        let document = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        });
        manifests::apply(dynamic_client.client(), &document, None, &force).await?;
    }
    eventually(LIMIT, "the policy to be enforced", || async {
        ensure!(is_enforced().await?, "it is not enforced");
        anyhow::Ok(())
    })
    .await
}

async fn delete_binding<K>(dynamic_client: &DynamicClient) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let bindings: Api<K> = Api::all(dynamic_client.client().clone());
    bindings.delete(dynamic_client.name(), &DeleteParams::default()).await?;
    Ok(())
}

/// Sends a patch in a dry run, and returns what the apiserver would store.
async fn dry_run(dynamic_client: &DynamicClient, object: &DynamicObject, patch: Value) -> kube::Result<DynamicObject> {
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let api = dynamic_client
        .api(object)
        .map_err(|error| kube::Error::Service(error.into()))?;
    api.patch(&object.name_any(), &dry_run, &Patch::Merge(patch)).await
}

/// A policy rejects changes of one owner, and those of a dependent of the other owner. Once it is
/// gone, the decisions count the dependents that earlier attempts have released.
#[tokio::test]
async fn an_orphaning_that_a_policy_rejects_is_reported_by_events() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-refused").await?;
    let collector = Collector::start(&plane, &[]).await?;
    let fixed_owner = dynamic_client.create(config_map("fixed-owner")).await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let dependents = [
        ("of-fixed-1", &fixed_owner),
        ("of-fixed-2", &fixed_owner),
        ("free", &owner),
        ("fixed-dependent", &owner),
    ];
    let mut created = Vec::new();
    for (name, owner) in dependents {
        created.push(dynamic_client.create(secret(name).owned_by(owner)).await?);
    }
    collector
        .wait_until_observes(&created.iter().collect::<Vec<_>>())
        .await?;
    let fixed = json!({"validations": [{
        "expression": "!object.metadata.name.startsWith('fixed-')", "message": "it is fixed",
    }]});
    apply_policy(&dynamic_client, VALIDATING, fixed, async || {
        let labelled = dry_run(
            &dynamic_client,
            &fixed_owner,
            json!({"metadata": {"labels": {"a": "b"}}}),
        )
        .await;
        Ok(labelled.is_err())
    })
    .await?;
    for owner in [&fixed_owner, &owner] {
        dynamic_client.delete(owner, Policy::Orphan).await?;
    }
    dynamic_client
        .wait_for_event(&[&fixed_owner], REFUSED, &["it is fixed"])
        .await?;
    dynamic_client
        .wait_for_event(&[&created[3]], REFUSED, &["it is fixed"])
        .await?;
    dynamic_client
        .wait_for_event(&[&owner], REFUSED, &["fixed-dependent", "it is fixed"])
        .await?;
    for dependent in &created[..3] {
        wait_until_released(&dynamic_client, dependent).await?;
    }
    delete_binding::<ValidatingAdmissionPolicyBinding>(&dynamic_client).await?;
    for owner in [&fixed_owner, &owner] {
        dynamic_client.wait_until_gone(owner).await?;
        let uid = owner.metadata.uid.as_deref().unwrap_or_default();
        // The owner is gone before the collector has the response and records the decision.
        eventually(LIMIT, "the decision", || async {
            let (_, decisions) = collector.page(&format!("decisions?uid={uid}")).await?;
            ensure!(decisions.contains("\"2 dependents orphaned\""), "{decisions}");
            anyhow::Ok(())
        })
        .await?;
    }
    wait_until_released(&dynamic_client, &created[3]).await
}

/// Returns a policy that replaces a field of the metadata.
fn replacing(field: &str, value: &str) -> Value {
    let expression = format!("[JSONPatch{{op: 'add', path: '/metadata/{field}', value: {value}}}]");
    json!({
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    })
}

/// The apiserver answers 200 to a patch that admission has undone. If the owner were gone, its
/// dependent would be garbage.
#[tokio::test]
async fn an_orphaning_that_admission_undoes_keeps_the_owner() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-restored").await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let dependent = dynamic_client.create(secret("dependent").owned_by(&owner)).await?;
    let probe = dynamic_client.create(secret("probe").owned_by(&owner)).await?;
    let (name, uid) = (owner.name_any(), owner.uid().unwrap_or_default());
    let reference = format!("[{{'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': '{name}', 'uid': '{uid}'}}]");
    let mut policy = replacing("ownerReferences", &reference);
    policy["matchConditions"] = json!([{"name": "dependents", "expression": "object.metadata.name != 'owner'"}]);
    apply_policy(&dynamic_client, MUTATING, policy, async || {
        let without = json!({"metadata": {"ownerReferences": null}});
        let patched = dry_run(&dynamic_client, &probe, without).await?;
        Ok(patched.metadata.owner_references.is_some())
    })
    .await?;
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_observes(&[&dependent]).await?;
    dynamic_client.delete(&owner, Policy::Orphan).await?;
    dynamic_client
        .wait_for_event(&[&owner], REFUSED, &["owner reference of", UNDONE])
        .await?;
    dynamic_client.get(&owner).await?;
    dynamic_client.get(&dependent).await?;

    delete_binding::<MutatingAdmissionPolicyBinding>(&dynamic_client).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    wait_until_released(&dynamic_client, &dependent).await
}

/// An object whose finalizer comes back is not gone.
#[tokio::test]
async fn a_finalizer_that_admission_restores_is_reported() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-finalizer").await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let probe = dynamic_client.create(config_map("probe")).await?;
    let mut policy = replacing("finalizers", "['foregroundDeletion']");
    policy["matchConditions"] = json!([{"name": "deleted", "expression":
        "has(object.metadata.deletionTimestamp) || object.metadata.name == 'probe'"}]);
    apply_policy(&dynamic_client, MUTATING, policy, async || {
        let patched = dry_run(&dynamic_client, &probe, json!({"metadata": {"labels": {"a": "b"}}})).await?;
        Ok(patched.metadata.finalizers.is_some())
    })
    .await?;
    dynamic_client.delete(&owner, Policy::Foreground).await?;
    dynamic_client.wait_for_event(&[&owner], REFUSED, &[UNDONE]).await?;
    dynamic_client.get(&owner).await?;
    delete_binding::<MutatingAdmissionPolicyBinding>(&dynamic_client).await?;
    dynamic_client.wait_until_gone(&owner).await
}
