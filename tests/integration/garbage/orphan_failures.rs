//! Orphanings whose requests are rejected.

use anyhow::{Result, ensure};
use http::StatusCode;
use k8s_openapi::api::{admissionregistration::v1::MutatingAdmissionPolicyBinding, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat, eventually};
use serde_json::json;

use super::{collector::Collector, unlistable::wait_until_released};
use crate::fixtures::{
    RETRY_LIMIT,
    dynamic_client::{DynamicClient, Policy},
    manifests,
    object_builder::{config_map, secret},
};

/// Waits for an event about the object whose note has these words.
async fn wait_until_refused(dynamic_client: &DynamicClient, object: &DynamicObject, words: &[&str]) -> Result<()> {
    let events: Api<Event> = Api::namespaced(dynamic_client.client().clone(), dynamic_client.name());
    eventually(RETRY_LIMIT, &format!("an event with {words:?}"), || async {
        let events = events.list(&ListParams::default()).await?;
        let mut of_object = events.iter().filter(|event| {
            let uid = event.regarding.as_ref().and_then(|regarding| regarding.uid.as_ref());
            uid == object.metadata.uid.as_ref() && event.reason.as_deref() == Some("GarbageCollectionRefused")
        });
        let note = |event: &Event| event.note.clone().unwrap_or_default();
        ensure!(
            of_object.any(|event| words.iter().all(|word| note(event).contains(word))),
            "{events:?}"
        );
        anyhow::Ok(())
    })
    .await
}

/// A policy rejects changes of one owner, and those of a dependent of the other owner. Once it is
/// gone, the decisions count the dependents that earlier attempts have released.
#[tokio::test]
async fn an_orphaning_that_a_policy_rejects_is_reported_by_events() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-refused").await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "refused")?;
    let rejection = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "denied by the policy");
    for name in ["fixed-owner", "fixed-dependent"] {
        let changes = Matcher::any().method("PATCH").name(name);
        proxy.respond(changes, rejection.clone(), Repeat::UntilHealed);
    }
    let collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
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
    for owner in [&fixed_owner, &owner] {
        dynamic_client.delete(owner, Policy::Orphan).await?;
    }
    wait_until_refused(&dynamic_client, &fixed_owner, &["denied by the policy"]).await?;
    wait_until_refused(&dynamic_client, &created[3], &["denied by the policy"]).await?;
    wait_until_refused(&dynamic_client, &owner, &["fixed-dependent", "denied by the policy"]).await?;
    for dependent in &created[..3] {
        wait_until_released(&dynamic_client, dependent).await?;
    }
    proxy.heal();
    for owner in [&fixed_owner, &owner] {
        dynamic_client.wait_until_gone(owner).await?;
        let uid = owner.metadata.uid.as_deref().unwrap_or_default();
        let (_, decisions) = collector.page(&format!("decisions?uid={uid}")).await?;
        ensure!(decisions.contains("\"2 dependents orphaned\""), "{decisions}");
    }
    wait_until_released(&dynamic_client, &created[3]).await
}

/// Makes the apiserver add a reference to this ConfigMap to every Secret in the namespace that is
/// updated. It takes effect after a moment.
async fn keep_references(dynamic_client: &DynamicClient, owner: &DynamicObject) -> Result<()> {
    let name = dynamic_client.name();
    let (owner, uid) = (owner.name_any(), owner.uid().unwrap_or_default());
    let references = format!("[{{'apiVersion': 'v1', 'kind': 'ConfigMap', 'name': '{owner}', 'uid': '{uid}'}}]");
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"],
                    "resources": ["secrets"]}],
            },
            "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": format!(
                "[JSONPatch{{op: 'add', path: '/metadata/ownerReferences', value: {references}}}]"
            )}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    });
    let force = PatchParams::apply("an-administrator").force();
    for document in [&policy, &binding] {
        manifests::apply(dynamic_client.client(), document, None, &force).await?;
    }
    Ok(())
}

/// The apiserver answers 200 to a patch that admission has undone. If the owner were gone, its
/// dependent would be garbage.
#[tokio::test]
async fn an_orphaning_that_admission_undoes_keeps_the_owner() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-restored").await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let dependent = dynamic_client.create(secret("dependent").owned_by(&owner)).await?;
    let probe = dynamic_client.create(secret("probe").owned_by(&owner)).await?;
    keep_references(&dynamic_client, &owner).await?;
    eventually(RETRY_LIMIT, "the policy to be enforced", || async {
        let without = json!({"metadata": {"ownerReferences": null}});
        let dry_run = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patched = dynamic_client
            .api(&probe)?
            .patch("probe", &dry_run, &Patch::Merge(without))
            .await?;
        ensure!(patched.metadata.owner_references.is_some(), "not enforced");
        anyhow::Ok(())
    })
    .await?;
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_observes(&[&dependent]).await?;
    dynamic_client.delete(&owner, Policy::Orphan).await?;
    let undone = "an admission policy or webhook has undone it";
    wait_until_refused(&dynamic_client, &owner, &["owner reference of", undone]).await?;
    dynamic_client.get(&owner).await?;
    dynamic_client.get(&dependent).await?;

    let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(dynamic_client.client().clone());
    bindings.delete(dynamic_client.name(), &DeleteParams::default()).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    wait_until_released(&dynamic_client, &dependent).await
}
