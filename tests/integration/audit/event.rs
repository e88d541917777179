//! An event of the log, with the fields that the checks read.

use std::{collections::HashMap, fmt};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

/// An event of `audit.k8s.io/v1`.
#[derive(Clone, Debug, Deserialize)]
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
    /// The body of the request, or null when the audit policy omits it.
    #[serde(default)]
    pub(crate) request_object: Value,
    pub(crate) response_status: Option<Status>,
    pub(crate) response_object: Option<Object>,
    pub(crate) request_received_timestamp: Timestamp,
    pub(crate) stage_timestamp: Timestamp,
}

impl Event {
    /// Returns whether a daemon sent the request, by its user agent.
    pub(crate) fn is_of_daemon(&self) -> bool {
        self.user_agent.starts_with("portreeve/")
    }

    /// Returns the status code of the response, or 0 without a response.
    pub(crate) fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }

    /// Returns whether the apiserver has completed the request with success.
    pub(crate) fn is_success(&self) -> bool {
        self.stage == Stage::ResponseComplete && (200..300).contains(&self.code())
    }

    /// Returns the resource without its subresource, or an empty string.
    pub(crate) fn resource(&self) -> &str {
        self.object_ref.as_ref().map_or("", |object| &object.resource)
    }

    /// Returns the namespace, or an empty string.
    pub(crate) fn namespace(&self) -> &str {
        self.object_ref.as_ref().map_or("", |object| &object.namespace)
    }

    /// Returns the namespace, or the name of a cluster-scoped object.
    pub(crate) fn namespace_or_name(&self) -> &str {
        let object = self.object_ref.as_ref();
        object.map_or("", |object| {
            if object.namespace.is_empty() {
                &object.name
            } else {
                &object.namespace
            }
        })
    }

    /// Returns the object as `resource namespace/name`.
    pub(crate) fn object(&self) -> String {
        let name = self.object_ref.as_ref().map_or("", |object| &object.name);
        format!("{} {}/{name}", self.resource(), self.namespace())
    }

    /// Returns whether this is a deletion that names a UID and a resourceVersion.
    pub(crate) fn has_preconditions(&self) -> bool {
        let preconditions = &self.request_object["preconditions"];
        ["uid", "resourceVersion"]
            .iter()
            .all(|field| preconditions[field].as_str().is_some_and(|text| !text.is_empty()))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.response_status.as_ref().map_or("", |status| &status.message);
        let Self { user_agent, verb, .. } = self;
        write!(f, "{user_agent}: {verb} {}: {} {message}", self.object(), self.code())
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub(crate) enum Stage {
    RequestReceived,
    /// Logged for watches and other long-running requests.
    ResponseStarted,
    ResponseComplete,
    Panic,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct User {
    /// Empty when the apiserver could not authenticate the request.
    #[serde(default)]
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

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub(crate) struct ObjectReference {
    pub(crate) api_group: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) message: String,
}

/// The object in a response: a single object, a list or a Status. The last two carry no revision of
/// the write.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Object {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) metadata: Metadata,
    /// The Lease's spec. Other kinds do not have this field.
    #[serde(default)]
    pub(crate) spec: Spec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) deletion_timestamp: Option<Timestamp>,
    pub(crate) finalizers: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) holder_identity: Option<String>,
}
