//! `portreeve webhooks`: the configurations of the admission webhooks, and the role for reading
//! their parameters.
//!
//! No configuration has a `caBundle`: the leader sets it (`--tls-ca-bundles`), or cert-manager, so
//! that applying the manifest again does not remove it.
//!
//! Architecture Invariant: pure.

use portreeve_api::{Resource, Scope};
use portreeve_reconcile::admission::{FailurePolicy, Webhook, WebhookHandler};
use serde_json::{Value, json};

use super::{Account, Error, rbac::role_and_binding, yaml};

/// How long the apiserver waits for a response. A response takes milliseconds, so a longer limit
/// would only prolong an outage.
const TIMEOUT_SECONDS: u32 = 5;

/// Returns the manifests. Empty without webhooks.
pub(crate) fn webhooks(declared: &[Webhook], account: &Account) -> Result<String, Error> {
    let matching = |matches: fn(&WebhookHandler) -> bool| declared.iter().filter(move |it| matches(&it.handler));
    let mutating: Vec<_> = matching(|handler| matches!(handler, WebhookHandler::Default(_))).collect();
    let validating: Vec<_> = matching(|handler| matches!(handler, WebhookHandler::Validate(_))).collect();
    let mut documents = Vec::new();
    documents.extend(configuration("MutatingWebhookConfiguration", &mutating, account));
    documents.extend(configuration("ValidatingWebhookConfiguration", &validating, account));
    documents.extend(parameter_role(declared, account));
    yaml(&documents)
}

fn configuration(kind: &str, webhooks: &[&Webhook], account: &Account) -> Option<Value> {
    if webhooks.is_empty() {
        return None;
    }
    let name = format!("portreeve-webhooks.{}.{}", account.namespace, account.service_account);
    let webhooks: Vec<_> = webhooks.iter().map(|webhook| entry(webhook, account)).collect();
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name },
        "webhooks": webhooks,
    }))
}

fn entry(webhook: &Webhook, account: &Account) -> Value {
    let Resource {
        group, plural, scope, ..
    } = &webhook.resource;
    let scope = match scope {
        Scope::Cluster => "Cluster",
        Scope::Namespaced => "Namespaced",
    };
    let mut entry = json!({
        "name": webhook.name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "service": {
                "namespace": account.namespace,
                "name": format!("{}-webhook", account.service_account),
                "path": webhook.path(),
                "port": 443,
            },
        },
        "rules": [{
            "apiGroups": [group],
            "apiVersions": webhook.versions().collect::<Vec<_>>(),
            "operations": ["CREATE", "UPDATE"],
            "resources": [plural],
            "scope": scope,
        }],
        "failurePolicy": match webhook.failure_policy {
            FailurePolicy::Ignore => "Ignore",
            FailurePolicy::Fail => "Fail",
        },
        "matchPolicy": "Equivalent",
        "matchConditions": match_conditions(account),
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
    });
    if let Some(label) = webhook.label {
        entry["objectSelector"] = json!({ "matchExpressions": [{ "key": label, "operator": "Exists" }] });
    }
    if matches!(webhook.handler, WebhookHandler::Default(_)) {
        // A default for an update would replace a field that somebody removes. A second call would
        // double the time that an outage delays a write.
        entry["rules"][0]["operations"] = json!(["CREATE"]);
        entry["reinvocationPolicy"] = "Never".into();
    }
    entry
}

/// Returns the conditions under which the apiserver calls a webhook. They exempt what a cluster
/// needs to recover: the replicas' own writes, elections, and the control plane.
fn match_conditions(account: &Account) -> Value {
    let Account {
        namespace,
        service_account,
    } = account;
    json!([
        {
            "name": "not-a-replica",
            "expression": format!("request.userInfo.username != 'system:serviceaccount:{namespace}:{service_account}'"),
        },
        {
            "name": "not-a-lease",
            "expression": "!(request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases')",
        },
        {
            "name": "not-in-kube-system",
            "expression": "!has(request.namespace) || request.namespace != 'kube-system'",
        },
    ])
}

/// Returns the role for the parameters of the webhooks, which every replica watches, and its
/// binding. Empty if no webhook has parameters.
fn parameter_role(webhooks: &[Webhook], account: &Account) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    for resource in webhooks.iter().filter_map(|webhook| webhook.parameters.as_ref()) {
        let rule = json!({
            "apiGroups": [resource.group],
            "resources": [resource.plural],
            "verbs": ["list", "watch"],
        });
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    if rules.is_empty() {
        return Vec::new();
    }
    let metadata = json!({ "name": format!("{}:webhooks", account.service_account) });
    role_and_binding("Cluster", &metadata, &rules.into(), account).into()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use portreeve_cli::CONTROLLERS;

    #[test]
    fn a_label_selects_the_objects() {
        const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "ConfigMap", "configmaps");
        let webhook = Webhook::defaulting("a.b.c", CONFIG_MAPS, |_| {});
        let account = Account {
            namespace: "system".to_owned(),
            service_account: "manager".to_owned(),
        };
        let selector = |webhook: &Webhook| entry(webhook, &account)["objectSelector"].take();
        assert_eq!(selector(&webhook), Value::Null);
        assert_eq!(
            selector(&webhook.with_label("example.dev/copy-to")),
            json!({"matchExpressions": [{"key": "example.dev/copy-to", "operator": "Exists"}]})
        );
    }

    /// deploy/ has the whole text.
    #[test]
    fn configurations_of_the_controllers() {
        let account = Account {
            namespace: "system".to_owned(),
            service_account: "manager".to_owned(),
        };
        let text = webhooks(&portreeve_webhook::declared(CONTROLLERS).unwrap(), &account).unwrap();
        let shown = [
            "kind:",
            "  name:",
            "    path:",
            "      path:",
            "  failurePolicy:",
            "expression:",
        ];
        let lines = text.lines().filter(|line| shown.iter().any(|part| line.contains(part)));
        expect![[r#"
            kind: MutatingWebhookConfiguration
              name: portreeve-webhooks.system.manager
                  name: manager-webhook
                  path: /mutate/foos.samplecontroller.k8s.io
              failurePolicy: Ignore
              - expression: request.userInfo.username != 'system:serviceaccount:system:manager'
                name: not-a-replica
              - expression: "!(request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases')"
                name: not-a-lease
              - expression: "!has(request.namespace) || request.namespace != 'kube-system'"
                name: not-in-kube-system
              name: foos.samplecontroller.k8s.io
            kind: ValidatingWebhookConfiguration
              name: portreeve-webhooks.system.manager
                  name: manager-webhook
                  path: /validate/crontabs.stable.example.com
              failurePolicy: Ignore
              - expression: request.userInfo.username != 'system:serviceaccount:system:manager'
                name: not-a-replica
              - expression: "!(request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases')"
                name: not-a-lease
              - expression: "!has(request.namespace) || request.namespace != 'kube-system'"
                name: not-in-kube-system
              name: crontabs.stable.example.com
                  name: manager-webhook
                  path: /validate/foos.samplecontroller.k8s.io
              failurePolicy: Ignore
              - expression: request.userInfo.username != 'system:serviceaccount:system:manager'
                name: not-a-replica
              - expression: "!(request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases')"
                name: not-a-lease
              - expression: "!has(request.namespace) || request.namespace != 'kube-system'"
                name: not-in-kube-system
              name: foos.samplecontroller.k8s.io
            kind: ClusterRole
              name: manager:webhooks
            kind: ClusterRoleBinding
              name: manager:webhooks
              kind: ClusterRole
              name: manager:webhooks
            - kind: ServiceAccount
              name: manager"#]].assert_eq(&lines.collect::<Vec<_>>().join("\n"));
        assert_eq!(webhooks(&[], &account).unwrap(), "");
    }
}
