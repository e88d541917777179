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

/// The name of the policy and its binding.
const POLICY: &str = "reject-writes";

/// Makes the apiserver reject the deletion of every Job.
pub(crate) async fn reject_job_deletions(fixture: &NamespaceFixture) -> Result<()> {
    let rule = json!({"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["jobs"]});
    reject(fixture, &rule, "Jobs are kept").await?;
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
    let rule = json!({
        "apiGroups": ["stable.example.com"], "apiVersions": ["v1"], "operations": ["UPDATE"],
        "resources": ["crontabs/status"],
    });
    reject(fixture, &rule, "statuses are kept").await?;
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

/// Makes the apiserver reject every request that matches a rule, with a message.
async fn reject(fixture: &NamespaceFixture, rule: &Value, message: &str) -> Result<()> {
    let client = fixture.namespace.client();
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": message}],
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
    Ok(())
}

/// Ends the rejection of requests. It takes effect after a moment.
pub(crate) async fn stop_rejecting(fixture: &NamespaceFixture) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(fixture.namespace.client().clone());
    bindings.delete(POLICY, &DeleteParams::default()).await?;
    Ok(())
}
