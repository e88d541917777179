//! Waits until admission has noticed that policies and webhooks were removed.
//!
//! No request shows what the caches of admission plugins contain, and policies are read again only
//! once a second. But a plugin learns of changes in their order: when it rejects the object of a
//! configuration that was created last, it knows that earlier ones were removed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::template::starts_with_any;

/// How long admission may take to reject an object. It reads policies once a second.
const LIMIT: Duration = Duration::from_secs(30);
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1";
/// The keys of what admission plugins cache.
const CACHED: [&str; 6] = [
    "/registry/mutatingadmissionpolicies/",
    "/registry/mutatingadmissionpolicybindings/",
    "/registry/mutatingwebhookconfigurations/",
    "/registry/validatingadmissionpolicies/",
    "/registry/validatingadmissionpolicybindings/",
    "/registry/validatingwebhookconfigurations/",
];

/// Returns whether this is the key of something that admission plugins cache.
pub(super) fn caches(key: &[u8]) -> bool {
    starts_with_any(key, &CACHED)
}

/// Creates a configuration of each plugin and returns once each has rejected an object for it. The
/// caller removes the configurations.
pub(super) async fn wait_for_caches(client: &Client) -> Result<()> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = |kind: &str| format!("{kind}-{number}.portreeve.example");
    let [mutating_policy, validating_policy] = ["mutating-policy", "validating-policy"].map(name);
    let [mutating_webhook, validating_webhook] = ["mutating-webhook", "validating-webhook"].map(name);
    let denial = json!({"validations": [{"expression": "false"}]});
    for (name, objects) in [
        (&mutating_policy, policy("mutating", &mutating_policy, mutation())),
        (&validating_policy, policy("validating", &validating_policy, denial)),
        (&mutating_webhook, webhook("mutating", &mutating_webhook)),
        (&validating_webhook, webhook("validating", &validating_webhook)),
    ] {
        for (resource, object) in objects {
            post(client, &format!("{CONFIGURATIONS}/{resource}"), &object).await?;
        }
        eventually(LIMIT, &format!("{name} to be enforced"), || async {
            let object = json!({"metadata": {"name": name}});
            let sent = post(client, "/api/v1/namespaces/default/configmaps?dryRun=All", &object).await;
            let error = sent.err().context("the object was admitted")?;
            ensure!(format!("{error:#}").contains(name.as_str()), "{error:#}");
            anyhow::Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Returns a policy and its binding.
fn policy(kind: &str, name: &str, mut spec: Value) -> Vec<(String, Value)> {
    spec["failurePolicy"] = "Fail".into();
    spec["matchConstraints"] = json!({"resourceRules": [rule()]});
    spec["matchConditions"] = condition(name);
    let mut binding = json!({"policyName": name});
    if kind == "validating" {
        binding["validationActions"] = json!(["Deny"]);
    }
    let object = |spec| json!({"metadata": {"name": name}, "spec": spec});
    vec![
        (format!("{kind}admissionpolicies"), object(spec)),
        (format!("{kind}admissionpolicybindings"), object(binding)),
    ]
}

/// Returns a mutation that always fails.
fn mutation() -> Value {
    let expression = r#"[JSONPatch{op: "replace", path: "/data/missing", value: "any"}]"#;
    json!({
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    })
}

/// Returns a webhook on a port that nothing listens on.
fn webhook(kind: &str, name: &str) -> Vec<(String, Value)> {
    let webhook = json!({
        "name": name,
        "rules": [rule()],
        "matchConditions": condition(name),
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://127.0.0.1:1/"},
    });
    let object = json!({"metadata": {"name": name}, "webhooks": [webhook]});
    vec![(format!("{kind}webhookconfigurations"), object)]
}

fn rule() -> Value {
    json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]})
}

fn condition(name: &str) -> Value {
    json!([{"name": "name", "expression": format!("object.metadata.name == '{name}'")}])
}

async fn post(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(object.to_string().into_bytes())
        .context("failed to build a request")?;
    let created = client.request::<Value>(request).await;
    created.map(drop).with_context(|| format!("failed to post to {path}"))
}
