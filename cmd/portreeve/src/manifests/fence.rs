//! `portreeve fence`: an admission policy by which the apiserver refuses the writes of a replica that does not hold the Lease.
//!
//! The Lease itself is the policy's parameter. A replica's identity is `<pod>_<uuid>`, and the token that a pod writes with tells the
//! apiserver which pod it is bound to: the two are compared. What the replicas write to keep the election going passes: Leases and Events.
//!
//! Nobody else is to feel this policy, whatever goes wrong with it. A Lease that is not there lets everything pass, and so do Leases that
//! the apiserver cannot read: it judges both before it looks at who writes, so that anything stricter would refuse the writes of every user
//! to these resources. The expressions are total, so there is no other error to let pass.
//!
//! A fence is switched off by [`Action::Audit`], never by deleting it: an apiserver that has no binding left with a Lease as its parameter
//! stops watching Leases for good, and a fence that is put up again judges by what it had seen until then (kubernetes#130887).
//!
//! Architecture Invariant: pure.

use clap::ValueEnum;
use portreeve_client::FENCED_BY_SERVER;
use portreeve_reconcile::{Descriptor, Rule};
use serde_json::{Value, json};

use super::{Account, Error, yaml};

/// What the apiserver does with a write by a replica that does not lead.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Action {
    /// Reject it
    Deny,
    /// Admit it and record it in the audit log: the fence is off
    Audit,
}

/// The Lease that whoever writes must hold.
pub(crate) struct LeaseRef<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// The policy for what these controllers write, and its binding to the Lease. Nothing, when they write nothing.
pub(crate) fn fence(
    controllers: &[Descriptor],
    account: &Account,
    lease: &LeaseRef<'_>,
    action: Action,
) -> Result<String, Error> {
    let resources = resource_rules(controllers);
    if resources.is_empty() {
        return Ok(String::new());
    }
    // Cluster-wide, and for one account: both parts are needed to tell it from others.
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
            "matchConstraints": { "resourceRules": resources, "excludeResourceRules": election() },
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

/// Each of them has a value, whatever the Lease and the token are like.
fn variables() -> Value {
    let pod = "authentication.kubernetes.io/pod-name";
    json!([
        {
            "name": "holder",
            "expression": "has(params.spec) && has(params.spec.holderIdentity) ? params.spec.holderIdentity : ''",
        },
        // All before the last underscore: a host name may hold some, a UUID holds none.
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

/// For whoever reads the log: who wrote, and who leads.
fn message(lease: &LeaseRef<'_>) -> String {
    let LeaseRef { namespace, name } = lease;
    format!(
        "'{FENCED_BY_SERVER}: ' + (variables.pod == '' ? 'a token that is bound to no pod' : 'pod ' + variables.pod) \
        + ' does not hold Lease {namespace}/{name}, ' \
        + (variables.holder == '' ? 'which nobody holds' : 'which ' + variables.holder + ' holds')"
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

/// What these controllers may write, and nothing that they only read. What two of them share is there once.
fn resource_rules(controllers: &[Descriptor]) -> Vec<Value> {
    let mut rules = Vec::new();
    for rule in controllers.iter().flat_map(|controller| controller.rules) {
        let operations = operations(rule.verbs);
        let resources: Vec<_> = rule.resources.iter().filter(|it| is_fenced(rule, it)).collect();
        let rule = json!({
            "apiGroups": rule.groups, "apiVersions": ["*"], "operations": operations, "resources": resources,
        });
        if !operations.is_empty() && !resources.is_empty() && !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}

/// What passes whoever writes it, although a rule for everything names it: by this replicas are elected, and tell of it.
fn election() -> Value {
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

/// The election needs Leases and tells Events. A finalizers subresource is a right without requests: nothing is served there.
fn is_fenced(rule: &Rule, resource: &str) -> bool {
    let is_election = match resource {
        "leases" => rule.groups.contains(&"coordination.k8s.io"),
        "events" => rule.groups.iter().any(|group| ["", "events.k8s.io"].contains(group)),
        _ => false,
    };
    !is_election && !resource.ends_with("/finalizers")
}

/// What admission calls these verbs. An apply that makes an object is asked for `create` as well, so `patch` alone is an update.
fn operations(verbs: &[&str]) -> Vec<&'static str> {
    let table: [(&'static str, &[&str]); 3] = [
        ("CREATE", &["create", "*"]),
        ("UPDATE", &["patch", "update", "*"]),
        ("DELETE", &["delete", "deletecollection", "*"]),
    ];
    let asked = table
        .into_iter()
        .filter(|(_, of)| of.iter().any(|verb| verbs.contains(verb)));
    asked.map(|(operation, _)| operation).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::CONTROLLERS;

    fn rules(controllers: &[Descriptor]) -> String {
        let rules = resource_rules(controllers);
        let line = |rule: &Value| format!("{} {} {}", rule["operations"], rule["apiGroups"], rule["resources"]);
        rules.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_controllers_write_is_fenced_and_what_they_read_is_not() {
        expect![[r#"
            ["UPDATE"] ["stable.example.com"] ["crontabs/status"]
            ["CREATE","DELETE"] ["batch"] ["jobs"]
            ["UPDATE"] ["batch"] ["cronjobs/status"]
            ["UPDATE"] ["samplecontroller.k8s.io"] ["foos/status"]
            ["CREATE","UPDATE","DELETE"] ["apps"] ["deployments"]
            ["UPDATE","DELETE"] ["*"] ["*"]
            ["DELETE"] ["batch"] ["jobs"]"#]]
        .assert_eq(&rules(CONTROLLERS));
    }

    #[test]
    fn the_election_itself_is_never_fenced() {
        let greedy = Descriptor {
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
            ..CONTROLLERS[0]
        };
        assert_eq!(rules(&[greedy]), "");
    }
}
