//! The check that a version can be read and written through the conversion webhook.

use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, Request},
};
use portreeve_api::null_as_default;
use portreeve_client::{ApiErrorKind, error_chain};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{
    CRONTABS,
    cluster::{Cluster, MANAGER},
    definition::Definition,
    objects::ListedObject,
};

/// The name of the object whose creation is only tried.
const NAME: &str = "portreeve-conversion-check";
/// Where its creation is tried, unless its manifest has a namespace.
const NAMESPACE: &str = "default";

/// An object without its managed fields, which may be too deep to be decoded.
#[derive(Deserialize)]
struct ReadObject {
    metadata: ListedObject,
    /// Everything else.
    #[serde(flatten)]
    data: Value,
}

#[derive(Deserialize)]
struct ObjectList {
    /// `null` if there are none.
    #[serde(deserialize_with = "null_as_default")]
    items: Vec<ReadObject>,
}

/// The reason why a version is not usable.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The conversions have lost or changed the value at this path.
    #[error("the conversion loses or changes {path}")]
    Lossy { path: String },
    /// The apiserver has not answered within the time limit.
    #[error("no response")]
    NoResponse,
    /// The apiserver does not accept the sample.
    #[error("{}; pass --sample with a manifest that the apiserver accepts", error_chain(.0))]
    Refused(kube::Error),
    /// A request failed.
    #[error("{}", error_chain(.0))]
    Request(kube::Error),
    /// The sample is no object.
    #[error("invalid sample: {0}")]
    Sample(serde_json::Error),
}

/// The check of the conversion.
pub(super) struct Probe<'a> {
    cluster: &'a Cluster,
    resource: ApiResource,
    is_namespaced: bool,
    sample: Value,
}

impl<'a> Probe<'a> {
    /// Checks this version, or another one if this is the one that is stored: it is not converted.
    /// Without an object in the cluster, the check uses this manifest.
    pub(super) fn new(cluster: &'a Cluster, definition: &Definition, version: &str, sample: Option<Value>) -> Self {
        let mut converted = definition.versions.iter();
        let other = converted.find(|other| other.is_served && !other.is_stored);
        let version = match other {
            Some(other) if definition.storage() == version => &other.name,
            _ => version,
        };
        Self {
            cluster,
            resource: definition.resource(version),
            is_namespaced: definition.is_namespaced,
            sample: sample.unwrap_or_else(|| default_sample(&cluster.name, version)),
        }
    }

    /// Reads an object and writes it again without storing anything, so that it is converted from
    /// the stored version and to it. Returns why that is not possible, or what was lost.
    pub(super) async fn check(&self) -> Result<(), ProbeError> {
        match self.read_and_write().await {
            Ok(Some((read, written))) => compare(&written.data, &read.data),
            Ok(None) => self.create().await,
            // The object is invalid, may not be written, or is too deep. Another one may do.
            Err(error) if is_refused(&error) || matches!(error, kube::Error::SerdeError(_)) => self.create().await,
            Err(error) => Err(ProbeError::Request(error)),
        }
    }

    /// Returns an object as it was read, and as it would be written. `None` if there is none.
    async fn read_and_write(&self) -> kube::Result<Option<(ReadObject, ReadObject)>> {
        let all: Api<DynamicObject> = Api::all_with(self.cluster.client.clone(), &self.resource);
        let request = Request::new(all.resource_url()).list(&ListParams::default().limit(1));
        let request = request.map_err(kube::Error::BuildRequest)?;
        let mut listed: ObjectList = self.cluster.client.request(request).await?;
        let Some(object) = listed.items.pop() else {
            return Ok(None);
        };
        let written = self.write_again(&object.metadata).await?;
        Ok(Some((object, written)))
    }

    async fn write_again(&self, object: &ListedObject) -> kube::Result<ReadObject> {
        let unchanged = json!({"metadata": {"uid": object.uid, "resourceVersion": object.resource_version}});
        let parameters = PatchParams {
            dry_run: true,
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(object.namespace.as_deref());
        let request = Request::new(api.resource_url()).patch(&object.name, &parameters, &Patch::Merge(unchanged));
        self.cluster
            .client
            .request(request.map_err(kube::Error::BuildRequest)?)
            .await
    }

    /// Tries to create the sample.
    async fn create(&self) -> Result<(), ProbeError> {
        let mut sample = self.sample.clone();
        sample["apiVersion"] = self.resource.api_version.clone().into();
        sample["kind"] = self.resource.kind.clone().into();
        let metadata = &sample["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or(NAMESPACE).to_owned();
        if metadata["name"].as_str().is_none() {
            sample["metadata"]["name"] = NAME.into();
        }
        let sample: DynamicObject = serde_json::from_value(sample).map_err(ProbeError::Sample)?;
        let parameters = PostParams {
            dry_run: true,
            field_manager: Some(MANAGER.to_owned()),
        };
        match self.api(Some(&namespace)).create(&parameters, &sample).await {
            Ok(created) => compare(&created.data, &sample.data),
            Err(error) if is_refused(&error) => Err(ProbeError::Refused(error)),
            Err(error) => Err(ProbeError::Request(error)),
        }
    }

    fn api(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        let client = self.cluster.client.clone();
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => Api::namespaced_with(client, namespace, &self.resource),
            None => Api::all_with(client, &self.resource),
        }
    }
}

fn is_refused(error: &kube::Error) -> bool {
    matches!(ApiErrorKind::of(error), ApiErrorKind::Invalid | ApiErrorKind::Forbidden)
}

/// Returns an object that this version of the definition accepts.
fn default_sample(name: &str, version: &str) -> Value {
    let (schedule, containers) = ("0 0 1 1 *", json!([{"name": "check", "image": "check"}]));
    match (name, version) {
        (CRONTABS, "v1") => json!({"spec": {"schedule": schedule, "jobTemplate": {"containers": containers}}}),
        (CRONTABS, _) => {
            let pod = json!({"containers": containers, "restartPolicy": "Never"});
            json!({"spec": {
                "schedules": [{"name": "default", "schedule": schedule}],
                "template": {"spec": {"template": {"spec": pod}}},
            }})
        }
        _ => json!({}),
    }
}

/// Returns an error if the conversions have lost or changed something.
fn compare(returned: &Value, sent: &Value) -> Result<(), ProbeError> {
    match difference(returned, sent) {
        Some(path) => Err(ProbeError::Lossy { path }),
        None => Ok(()),
    }
}

/// Returns the path of a value in `part` that `whole` does not have.
fn difference(whole: &Value, part: &Value) -> Option<String> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().find_map(|(name, part)| {
            let path = match whole.get(name) {
                Some(whole) => difference(whole, part)?,
                None => String::new(),
            };
            Some(format!(".{name}{path}"))
        }),
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            let mut pairs = whole.iter().zip(part).enumerate();
            pairs.find_map(|(index, (whole, part))| Some(format!("[{index}]{}", difference(whole, part)?)))
        }
        _ => (whole != part).then(String::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lost_value_is_named() {
        let sent = json!({"spec": {"a": [{"b": 1}, {"c": 2}], "d": null}});
        let check = |returned: Value, expected: Option<&str>| {
            let lost = expected.map(|path| format!("the conversion loses or changes {path}"));
            assert_eq!(compare(&returned, &sent).err().map(|error| error.to_string()), lost);
        };
        let defaulted = json!({"spec": {"a": [{"b": 1}, {"c": 2, "e": 3}], "d": null}, "status": {}});
        check(defaulted, None);
        check(json!({}), Some(".spec"));
        check(json!({"spec": {"a": []}}), Some(".spec.a"));
        let other = json!({"spec": {"a": [{"b": 1}, {"c": 3}], "d": null}});
        check(other, Some(".spec.a[1].c"));
    }
}
