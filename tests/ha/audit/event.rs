//! One line of the log, as far as it is of interest.

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
    /// Not there for paths that are no resources.
    pub(crate) object_ref: Option<ObjectReference>,
    pub(crate) response_status: Option<Status>,
    pub(crate) response_object: Option<Object>,
    pub(crate) stage_timestamp: Timestamp,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub(crate) enum Stage {
    RequestReceived,
    /// Of watches and the like.
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
    /// Who that is: the name and, for a token that is bound to a Pod, the Pod, as `<name>/<pod>`.
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

/// What was answered: an object, a list of them, or a Status, of which the last two carry no revision of their own.
#[derive(Debug, Deserialize)]
pub(crate) struct Object {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) metadata: Metadata,
    /// The part of a Lease's that matters. Others have no such field.
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
