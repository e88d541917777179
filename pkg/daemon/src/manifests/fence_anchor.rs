//! `portreeve fence-anchor`: an admission policy that lets a fence be deleted and created again.
//!
//! An apiserver without any binding that has a Lease as its parameter stops watching Leases, and
//! never starts again (kubernetes#130887). A fence that is created later would use the Leases of
//! that time. The anchor is another policy with a Lease as its parameter. It matches no request and
//! keeps the watch alive. It is separate from the fence, so that what deletes the fence leaves the
//! anchor.
//!
//! Architecture Invariant: pure.

use serde_json::json;

use super::{Account, Error, yaml};

/// A group that no apiserver serves. Nobody can request it, so the policy costs nothing.
const UNSERVED_GROUP: &str = "fence-anchor.portreeve.dev";

/// Returns the policy for the fence of this account, and its binding.
pub(crate) fn fence_anchor(account: &Account) -> Result<String, Error> {
    let metadata = json!({
        // The objects are cluster-scoped and belong to one account, so the name needs both parts.
        "name": format!("portreeve-fence-anchor.{}.{}", account.namespace, account.service_account),
        "annotations": {
            "kubernetes.io/description": "Keeps the apiserver watching Leases when Portreeve's fence is deleted, so that it works \
                when it is created again (kubernetes#130887). Matches no request. Do not delete it.",
        },
    });
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Ignore",
            "paramKind": { "apiVersion": "coordination.k8s.io/v1", "kind": "Lease" },
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [UNSERVED_GROUP], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"],
            }] },
            "validations": [{ "expression": "true" }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {
            "policyName": metadata["name"],
            "paramRef": { "selector": {}, "parameterNotFoundAction": "Allow" },
            "validationActions": ["Audit"],
        },
    });
    yaml(&[policy, binding])
}
