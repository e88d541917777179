//! Requests that an admission policy rejects.

use anyhow::{Result, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{
    Api,
    api::{DeleteParams, PatchParams},
};
use portreeve_testing::eventually;
use serde_json::json;

use crate::fixtures::{LIMIT, jobs::Jobs, manifests, namespace::NamespaceFixture};

/// The name of the policy and its binding.
const POLICY: &str = "keep-jobs";

/// Makes the apiserver reject the deletion of every Job.
pub(crate) async fn reject_job_deletions(fixture: &NamespaceFixture) -> Result<()> {
    let client = fixture.namespace.client();
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["jobs"]}]},
            "validations": [{"expression": "false", "message": "Jobs are kept"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    });
    for document in [&policy, &binding] {
        manifests::apply(client, document, None, &PatchParams::apply("an-administrator").force()).await?;
    }
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

/// Makes the apiserver allow the deletion of Jobs again. It takes effect after a moment.
pub(crate) async fn allow_job_deletions(fixture: &NamespaceFixture) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(fixture.namespace.client().clone());
    bindings.delete(POLICY, &DeleteParams::default()).await?;
    Ok(())
}
