//! `portreeve fence`: an admission policy that rejects the writes of replicas that do not hold the
//! Lease.
//!
//! The Lease is the parameter of the policy. The holder of the Lease is a replica's identity,
//! `<pod>_<uuid>`, and the token of a request names the pod that it is bound to. The policy
//! compares the two pods. The writes of the election itself, to Leases and Events, are exempt. The
//! leader also installs CRDs, so those of the controllers are covered by name.
//!
//! The policy must not affect other users, even when it fails. It admits everything when the Lease
//! is missing or the apiserver cannot read it. The apiserver evaluates both cases before the match
//! conditions, so a stricter setting would reject the writes of all users to these resources. The
//! expressions cannot fail, so no other error needs to be ignored.
//!
//! Switch a fence off with [`Action::Audit`]. If it is deleted, a fence that is created later uses
//! outdated Leases, unless the anchor (`fence_anchor`) exists.
//!
//! Architecture Invariant: pure.

use clap::ValueEnum;
use portreeve_client::FENCED_BY_SERVER;
use portreeve_reconcile::{Descriptor, Rule};
use serde_json::{Value, json};

use super::{Account, Error, definition_names, yaml};

/// The apiserver's action on a write by a replica that does not lead.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Action {
    /// Reject the write
    Deny,
    /// Admit the write and record it in the audit log, which switches the fence off
    Audit,
}

/// The Lease that a writer must hold.
pub(crate) struct LeaseRef<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// Returns the policy for the writes of these controllers and its binding to the Lease. Empty when
/// they write nothing.
pub(crate) fn fence(
    controllers: &[Descriptor],
    account: &Account,
    lease: &LeaseRef<'_>,
    action: Action,
) -> Result<String, Error> {
    let resources = resource_rules(controllers)?;
    if resources.is_empty() {
        return Ok(String::new());
    }
    // The objects are cluster-scoped and belong to one account, so the name needs both parts.
    let name = format!("portreeve-fence.{}.{}", account.namespace, account.service_account);
    yaml(&[policy(&name, &resources, account, lease), binding(&name, lease, action)])
}

fn policy(name: &str, resources: &[Value], account: &Account, lease: &LeaseRef<'_>) -> Value {
    let Account {
        namespace,
        service_account,
    } = account;
    let user = format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{service_account}'");
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Ignore",
            "paramKind": { "apiVersion": "coordination.k8s.io/v1", "kind": "Lease" },
            "matchConstraints": { "resourceRules": resources, "excludeResourceRules": election_rules() },
            "matchConditions": [{ "name": "a-replica-writes", "expression": user }],
            "variables": variables(),
            "validations": [{
                "expression": "variables.pod != '' && variables.pod == variables.leader",
                "reason": "Forbidden",
                "message": FENCED_BY_SERVER,
                "messageExpression": message(lease),
            }],
        },
    })
}

/// Returns the variables of the policy. Each has a value, whatever the Lease and the token contain.
fn variables() -> Value {
    let pod = "authentication.kubernetes.io/pod-name";
    json!([
        {
            "name": "holder",
            "expression": "has(params.spec) && has(params.spec.holderIdentity) ? params.spec.holderIdentity : ''",
        },
        // The text before the last underscore: a host name may contain underscores, a UUID does
        // not.
        {
            "name": "leader",
            "expression": "variables.holder.lastIndexOf('_') < 0 ? '' : \
                variables.holder.substring(0, variables.holder.lastIndexOf('_'))",
        },
        {
            "name": "pod",
            "expression": format!(
                "has(request.userInfo.extra) && '{pod}' in request.userInfo.extra \
                && request.userInfo.extra['{pod}'].size() == 1 ? request.userInfo.extra['{pod}'][0] : ''"
            ),
        },
    ])
}

/// Returns a CEL expression for the message of a rejection: which pod wrote, and who leads.
fn message(lease: &LeaseRef<'_>) -> String {
    let LeaseRef { namespace, name } = lease;
    format!(
        "'{FENCED_BY_SERVER}: ' + (variables.pod == '' ? 'a token that is not bound to a pod' : 'pod ' + variables.pod) \
        + ' does not hold Lease {namespace}/{name}, ' \
        + (variables.holder == '' ? 'which has no holder' : 'which is held by ' + variables.holder)"
    )
}

fn binding(name: &str, lease: &LeaseRef<'_>, action: Action) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": name },
        "spec": {
            "policyName": name,
            "paramRef": { "name": lease.name, "namespace": lease.namespace, "parameterNotFoundAction": "Allow" },
            "validationActions": [format!("{action:?}")],
        },
    })
}

/// Returns rules for everything that these controllers write, and for their CRDs. Equal rules are
/// merged. The chart joins the rules of single controllers, so none concerns two of them.
fn resource_rules(controllers: &[Descriptor]) -> Result<Vec<Value>, Error> {
    let mut rules = Vec::new();
    for controller in controllers {
        let of_definition = |name: String| {
            json!({
                "apiGroups": ["apiextensions.k8s.io"], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"],
                "resources": ["customresourcedefinitions"], "resourceNames": [name],
            })
        };
        let of_definitions = definition_names(controller)?.into_iter().map(of_definition);
        for rule in rules_of(controller).into_iter().chain(of_definitions) {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    Ok(rules)
}

/// Returns rules for the resources that a controller writes.
fn rules_of(controller: &Descriptor) -> Vec<Value> {
    let mut rules = Vec::new();
    for rule in controller.rules {
        let operations = operations(rule.verbs);
        let resources: Vec<_> = rule
            .resources
            .iter()
            .filter(|resource| is_fenced(rule, resource))
            .collect();
        let rule = json!({
            "apiGroups": rule.groups, "apiVersions": ["*"], "operations": operations, "resources": resources,
        });
        if !operations.is_empty() && !resources.is_empty() {
            rules.push(rule);
        }
    }
    rules
}

/// Returns rules for the resources that the election writes. They are exempt even if another rule
/// covers all resources.
fn election_rules() -> Value {
    let unfenced = |group: &str, resource: &str| {
        json!({
            "apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [resource],
        })
    };
    json!([
        unfenced("coordination.k8s.io", "leases"),
        unfenced("", "events"),
        unfenced("events.k8s.io", "events")
    ])
}

/// Returns whether the policy covers a resource of a rule. It covers neither Leases and Events,
/// which the election writes, nor `finalizers`, which appears only in RBAC rules and is never
/// requested.
fn is_fenced(rule: &Rule, resource: &str) -> bool {
    let is_election = match resource {
        "leases" => rule.groups.contains(&"coordination.k8s.io"),
        "events" => rule.groups.iter().any(|group| ["", "events.k8s.io"].contains(group)),
        _ => false,
    };
    !is_election && !resource.ends_with("/finalizers")
}

/// Returns the admission operations for these verbs. An apply that creates an object also needs the
/// verb `create`, so `patch` alone is an update.
fn operations(verbs: &[&str]) -> Vec<&'static str> {
    let table: [(&'static str, &[&str]); 3] = [
        ("CREATE", &["create", "*"]),
        ("UPDATE", &["patch", "update", "*"]),
        ("DELETE", &["delete", "deletecollection", "*"]),
    ];
    let requested = table
        .into_iter()
        .filter(|(_, allowing)| allowing.iter().any(|verb| verbs.contains(verb)));
    requested.map(|(operation, _)| operation).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use portreeve_cli::CONTROLLERS;

    fn rules(controllers: &[Descriptor]) -> String {
        let rules = resource_rules(controllers).unwrap();
        let line = |rule: &Value| {
            let names = rule.get("resourceNames").map(|names| format!(" {names}"));
            format!(
                "{} {} {}{}",
                rule["operations"],
                rule["apiGroups"],
                rule["resources"],
                names.unwrap_or_default()
            )
        };
        rules.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn resources_that_controllers_write_are_fenced() {
        expect![[r#"
            ["UPDATE"] ["rbac.authorization.k8s.io"] ["clusterroles"]
            ["UPDATE"] ["stable.example.com"] ["crontabs/status"]
            ["CREATE","DELETE"] ["batch"] ["jobs"]
            ["CREATE","UPDATE"] ["apiextensions.k8s.io"] ["customresourcedefinitions"] ["crontabs.stable.example.com"]
            ["CREATE","UPDATE"] ["apiextensions.k8s.io"] ["customresourcedefinitions"] ["crontabpolicies.stable.example.com"]
            ["UPDATE"] ["batch"] ["cronjobs/status"]
            ["UPDATE"] ["samplecontroller.k8s.io"] ["foos/status"]
            ["CREATE","UPDATE","DELETE"] ["apps"] ["deployments"]
            ["CREATE","UPDATE"] ["apiextensions.k8s.io"] ["customresourcedefinitions"] ["foos.samplecontroller.k8s.io"]
            ["UPDATE","DELETE"] ["*"] ["*"]
            ["UPDATE"] [""] ["namespaces/finalize","namespaces/status"]
            ["DELETE"] ["*"] ["*"]
            ["UPDATE"] [""] ["persistentvolumes"]
            ["UPDATE"] [""] ["persistentvolumeclaims"]
            ["CREATE","UPDATE"] [""] ["configmaps"]
            ["CREATE"] [""] ["serviceaccounts"]
            ["DELETE"] ["batch"] ["jobs"]"#]]
        .assert_eq(&rules(CONTROLLERS));
    }

    #[test]
    fn election_is_never_fenced() {
        let election_writer = Descriptor {
            rules: &[
                Rule {
                    groups: &["coordination.k8s.io"],
                    resources: &["leases"],
                    verbs: &["*"],
                },
                Rule {
                    groups: &["", "events.k8s.io"],
                    resources: &["events"],
                    verbs: &["create"],
                },
            ],
            crds: &[],
            ..CONTROLLERS[0]
        };
        assert_eq!(rules(&[election_writer]), "");
    }
}
