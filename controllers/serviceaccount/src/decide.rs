//! Decides whether a namespace needs its account.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_api::{ObjectKey, Resource};
use portreeve_informer::MetadataOnly;
use portreeve_reconcile::{Effect, Object, Plan};
use serde_json::json;

pub(crate) const SERVICE_ACCOUNTS: Resource = Resource::namespaced("", "v1", "ServiceAccount", "serviceaccounts");
/// The name of the account.
pub(crate) const DEFAULT: &str = "default";

/// What a decision depends on.
pub(crate) struct Observed {
    pub(crate) namespace: Arc<MetadataOnly>,
    /// Whether the account exists. One that is being deleted exists until it is gone.
    pub(crate) exists: bool,
}

/// Creates the account, unless the namespace is being deleted.
pub(crate) fn decide(observed: &Observed) -> Plan {
    let Observed { namespace, exists } = observed;
    if *exists || namespace.metadata.is_terminating() {
        return Plan::nothing();
    }
    let namespace = &namespace.metadata.name;
    Plan::of(vec![Effect::Create(Object {
        resource: SERVICE_ACCOUNTS,
        key: ObjectKey::namespaced(Arc::clone(namespace), DEFAULT),
        body: json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": DEFAULT, "namespace": namespace},
        }),
    })])
}

#[cfg(test)]
mod tests {
    use portreeve_api::Metadata;

    use super::*;

    /// The table of Kubernetes' `TestServiceAccountCreation`. It has a second account, which only
    /// tests can configure there, and runs each case for an added and for an updated namespace or
    /// for a deleted account; here all of them are the same observation.
    #[test]
    fn test_service_account_creation() {
        let active = Metadata {
            name: "n".into(),
            ..Metadata::default()
        };
        let terminating = Metadata {
            deletion_timestamp: Some("2026-01-02T03:04:05Z".parse().unwrap()),
            ..active.clone()
        };
        let table = [
            (&active, false, "create ServiceAccount n/default"),
            (&active, true, "nothing"),
            (&terminating, false, "nothing"),
            (&terminating, true, "nothing"),
        ];
        for (namespace, exists, expected) in table {
            let metadata = namespace.clone();
            let namespace = Arc::new(MetadataOnly { metadata });
            let plan = decide(&Observed { namespace, exists });
            assert_eq!(plan.to_string(), expected, "{exists}");
        }
    }
}
