//! The role that `portreeve webhooks` prints: each of its verbs is needed to watch parameters.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PatchParams;
use portreeve_testing::{ControlPlane, free_port};
use serde_json::json;

use crate::fixtures::{
    daemon::{Daemon, printed},
    manifests,
    rbac::printed_rules,
};

const CONTROLLERS: &str = "--controllers=crontab";
const CHECK: &str = "informer/crontabpolicies.v1.stable.example.com";

/// Applies the definitions. The schema of the parameters does not matter.
async fn apply_definitions(plane: &ControlPlane) -> Result<()> {
    let (client, force) = (plane.client()?, PatchParams::apply("an-administrator").force());
    let parameters = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabpolicies.stable.example.com"},
        "spec": {
            "group": "stable.example.com",
            "names": {"kind": "CronTabPolicy", "plural": "crontabpolicies", "singular": "crontabpolicy"},
            "scope": "Namespaced",
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                },
            }],
        },
    });
    let definitions = manifests::documents(&printed(&["crds", CONTROLLERS])?)?;
    for definition in definitions.iter().chain([&parameters]) {
        manifests::apply(&client, definition, None, &force).await?;
    }
    Ok(())
}

#[tokio::test]
async fn each_verb_on_the_parameters_of_webhooks_is_needed() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    apply_definitions(&plane).await?;
    let system = plane.namespace("portreeve-system").await?;
    let documents = manifests::documents(&printed(&["webhooks", CONTROLLERS])?)?;
    let role = documents.iter().find(|document| document["kind"] == "ClusterRole");
    let role = role.context("there is no role")?;
    let parameters: Vec<PolicyRule> = serde_json::from_value(role["rules"].clone())?;
    let verbs: Vec<_> = parameters.iter().flat_map(|rule| rule.verbs.clone()).collect();
    ensure!(verbs == ["list", "watch"], "{verbs:?}");
    for verb in verbs {
        let mut rules = printed_rules(&[CONTROLLERS])?;
        let all = [&rules[..], &parameters[..]].concat();
        rules.extend(parameters.iter().cloned().map(|rule| PolicyRule {
            verbs: rule.verbs.into_iter().filter(|other| *other != verb).collect(),
            ..rule
        }));
        let account = format!("without-{verb}");
        let kubeconfig = plane.service_account_kubeconfig(system.name(), &account, rules).await?;
        let port = format!("--webhook-port={}", free_port()?);
        let daemon = Daemon::start_as(&plane, &kubeconfig, &account, &[CONTROLLERS, &port]).await?;
        daemon
            .admin
            .wait_until_failing("/readyz", CHECK, &["forbidden", &verb])
            .await?;
        plane.service_account_kubeconfig(system.name(), &account, all).await?;
        daemon.admin.wait_until_ready().await?;
    }
    Ok(())
}
