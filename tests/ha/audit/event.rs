//! One line of the log, with the fields that the audit checker needs.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::Deserialize;

/// An event of `audit.k8s.io/v1`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    #[serde(rename = "auditID")]
    pub(crate) audit_id: String,
    pub(crate) stage: Stage,
    #[serde(rename = "requestURI")]
    pub(crate) request_uri: String,
    pub(crate) verb: String,
    pub(crate) user: User,
    #[serde(default)]
    pub(crate) user_agent: String,
    /// Missing for paths that are not resources.
    pub(crate) object_ref: Option<ObjectReference>,
    pub(crate) response_status: Option<Status>,
    pub(crate) response_object: Option<Object>,
    pub(crate) stage_timestamp: Timestamp,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub(crate) enum Stage {
    RequestReceived,
    /// Logged for watches and other long-running requests.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

#[derive(Debug, Deserialize)]
pub(crate) struct User {
    pub(crate) username: String,
    #[serde(default)]
    extra: HashMap<String, Vec<String>>,
}

impl User {
    /// Returns the user's name, or `<name>/<pod>` for a token that is bound to a Pod.
    pub(crate) fn sender(&self) -> String {
        let pod = self.extra.get("authentication.kubernetes.io/pod-name");
        match pod.and_then(|pods| pods.first()) {
            Some(pod) => format!("{}/{pod}", self.username),
            None => self.username.clone(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(crate) struct ObjectReference {
    pub(crate) api_group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Status {
    #[serde(default)]
    pub(crate) code: u16,
}

/// The object in a response: a single object, a list or a Status. The last two carry no revision of
/// the write.
#[derive(Debug, Deserialize)]
pub(crate) struct Object {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) metadata: Metadata,
    /// The Lease's spec. Other kinds do not have this field.
    #[serde(default)]
    pub(crate) spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) deletion_timestamp: Option<Timestamp>,
    pub(crate) finalizers: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) holder_identity: Option<String>,
}
