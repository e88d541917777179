//! `portreeve flowschema`: a FlowSchema that gives the requests of leader election seats of their
//! own in the apiserver.
//!
//! The built-in FlowSchemas for leader election cover only the accounts in kube-system, and not the
//! verb `patch`. Without this one, a renewal waits in the priority level `workload-low` behind the
//! writes of the controllers, which have the same account.
//!
//! It also covers the access reviews of standbys, whose readiness depends on them. A FlowSchema
//! cannot match the names of objects, so this one covers all Leases in the namespace.
//!
//! Architecture Invariant: pure.

use serde_json::json;

use super::{
    Account, Error,
    rbac::{CREATE_VERB, LEASE_VERBS},
    yaml,
};

/// The precedence among all FlowSchemas; the lowest number wins. It comes after the built-in
/// `system-leader-election` (100), and before those for all requests of an account:
/// `kube-system-service-accounts` (900) and `service-accounts` (9000).
const MATCHING_PRECEDENCE: u32 = 200;

/// Returns the FlowSchema for the account's requests for Leases in this namespace, and for its
/// access reviews.
pub(crate) fn flow_schema(account: &Account, lease_namespace: &str) -> Result<String, Error> {
    let Account {
        namespace,
        service_account,
    } = account;
    let verbs: Vec<_> = [CREATE_VERB].iter().chain(LEASE_VERBS).collect();
    yaml(&[json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "kind": "FlowSchema",
        // The object is cluster-scoped and belongs to one account, so the name needs both parts.
        "metadata": { "name": format!("portreeve-leader-election.{namespace}.{service_account}") },
        "spec": {
            "priorityLevelConfiguration": { "name": "leader-election" },
            "matchingPrecedence": MATCHING_PRECEDENCE,
            "distinguisherMethod": { "type": "ByUser" },
            "rules": [{
                "subjects": [{
                    "kind": "ServiceAccount",
                    "serviceAccount": { "namespace": namespace, "name": service_account },
                }],
                "resourceRules": [
                    {
                        "apiGroups": ["coordination.k8s.io"],
                        "resources": ["leases"],
                        "namespaces": [lease_namespace],
                        "verbs": verbs,
                    },
                    {
                        "apiGroups": ["authorization.k8s.io"],
                        "resources": ["selfsubjectaccessreviews"],
                        "clusterScope": true,
                        "verbs": ["create"],
                    },
                ],
            }],
        },
    })])
}
