//! Requests that an admission policy rejects.

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use crate::fixtures::{LIMIT, jobs::Jobs, manifests, namespace::NamespaceFixture, schedules::Kind};

/// The name of the policy for the whole cluster and its binding.
const POLICY: &str = "reject-writes";

/// Makes the apiserver reject the deletion of every Job.
pub(crate) async fn reject_job_deletions(fixture: &NamespaceFixture) -> Result<()> {
    let constraints = json!({"resourceRules": [{
        "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["jobs"]}]});
    apply_policy(fixture, POLICY, &constraints, "Jobs are kept").await?;
    // The policy takes effect after a moment.
    let jobs = Jobs::of(fixture);
    eventually(LIMIT, "the policy to refuse deletions", || async {
        jobs.create("probe", json!({})).await.ok();
        let deleted = jobs.0.delete("probe", &DeleteParams::background()).await;
        ensure!(deleted.is_err(), "the probe was deleted");
        anyhow::Ok(())
    })
    .await
}

/// Makes the apiserver reject the status of every CronTab. Creates the suspended CronTab `probe`.
pub(crate) async fn reject_crontab_statuses(fixture: &NamespaceFixture) -> Result<()> {
    let kind = Kind::CronTab;
    let constraints = json!({"resourceRules": [{
        "apiGroups": ["stable.example.com"], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["crontabs/status"],
    }]});
    apply_policy(fixture, POLICY, &constraints, "statuses are kept").await?;
    kind.create(&fixture.namespace, "probe", "@yearly", &json!({"suspend": true}))
        .await?;
    let objects = kind.objects(&fixture.namespace);
    eventually(LIMIT, "the policy to reject statuses", || async {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"status": {"missedRuns": 1}}));
        let patched = objects.patch_status("probe", &params, &patch).await;
        ensure!(patched.is_err(), "the status was patched");
        anyhow::Ok(())
    })
    .await
}

/// Makes the apiserver allow the deletion of Jobs, or the status of CronTabs, again. It takes
/// effect after a moment.
pub(crate) async fn stop_rejecting(fixture: &NamespaceFixture) -> Result<()> {
    delete_binding(fixture, POLICY).await
}

/// Makes the apiserver reject the deletion of every Deployment in the namespace.
pub(crate) async fn reject_deployment_deletions(fixture: &NamespaceFixture) -> Result<()> {
    let message = "Deployments are kept";
    let constraints = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fixture.name()}},
        "resourceRules": [{
            "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["deployments"]}],
    });
    apply_policy(fixture, fixture.name(), &constraints, message).await?;
    // The policy takes effect after a moment.
    eventually(LIMIT, "the policy to reject deletions", || async {
        fixture.create_foreign("probe").await.ok();
        let deleted = fixture.delete_deployment("probe").await;
        let is_rejected = deleted.is_err_and(|error| format!("{error:#}").contains(message));
        ensure!(is_rejected, "the probe was deleted");
        anyhow::Ok(())
    })
    .await
}

/// Makes the apiserver allow the deletion of Deployments again. It takes effect after a moment.
pub(crate) async fn allow_deployment_deletions(fixture: &NamespaceFixture) -> Result<()> {
    delete_binding(fixture, fixture.name()).await
}

/// Applies a policy of this name that rejects every request that matches the constraints.
async fn apply_policy(fixture: &NamespaceFixture, name: &str, constraints: &Value, message: &str) -> Result<()> {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": constraints,
            "validations": [{"expression": "false", "message": message}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    let force = PatchParams::apply("an-administrator").force();
    for document in [&policy, &binding] {
        manifests::apply(fixture.namespace.client(), document, None, &force).await?;
    }
    Ok(())
}

async fn delete_binding(fixture: &NamespaceFixture, name: &str) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(fixture.namespace.client().clone());
    bindings.delete(name, &DeleteParams::default()).await?;
    Ok(())
}
