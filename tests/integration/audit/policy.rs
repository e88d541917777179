//! Audit policies.

/// Writes of all users with their responses, each also when it was received, for the
/// [`AuditChecker`](super::AuditChecker). It covers all users because a write that changes nothing
/// returns the revision of another user's write.
pub(crate) const WRITES_WITH_RESPONSES: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitManagedFields": true,
  "rules": [
    {"level": "Metadata", "verbs": ["create", "update", "patch"], "resources": [
      {"group": "", "resources": ["events"]}, {"group": "events.k8s.io", "resources": ["events"]}
    ]},
    {"level": "RequestResponse", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
    {"level": "None"}
  ]
}"#;

/// Writes of all users, and the bodies of deletions of single objects, for [`effects`](super::effects).
pub(crate) const WRITES: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Request", "verbs": ["delete"]},
        {"level": "Metadata", "verbs": ["create", "patch", "update", "deletecollection"]},
        {"level": "None"}]}"#;

/// All requests, without bodies, each once when the apiserver responds. A watch is logged again
/// when it ends.
pub(crate) const REQUESTS: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
    "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}"#;

/// The requests of service accounts, as [`REQUESTS`].
pub(crate) const REQUESTS_OF_ACCOUNTS: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;
