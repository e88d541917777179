//! The desired and the cached Deployment of a Foo.

use std::{collections::BTreeMap, fmt::Display};

use portreeve_api::{Metadata, ObjectKey, OwnerReference, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::Object;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{api::FOOS, foo::CachedFoo};

/// The resource of Deployments.
pub(crate) const DEPLOYMENTS: Resource = Resource::namespaced("apps", "v1", "Deployment", "deployments");

/// The fields of a Deployment that the informer stores. The spec is stored as bytes, which take a
/// tenth of the memory of the decoded tree. Most Deployments of a cluster belong to no Foo; their
/// spec and labels are dropped.
#[derive(Debug, Deserialize)]
#[serde(from = "WireDeployment")]
pub(crate) struct CachedDeployment {
    pub(crate) metadata: Metadata,
    /// `None` when no Foo controls it.
    spec: Option<Box<RawValue>>,
    pub(crate) status: CachedDeploymentStatus,
}

/// A Deployment as the apiserver sends it.
#[derive(Deserialize)]
struct WireDeployment<'a> {
    metadata: Metadata,
    #[serde(borrow)]
    spec: &'a RawValue,
    #[serde(default)]
    status: CachedDeploymentStatus,
}

impl From<WireDeployment<'_>> for CachedDeployment {
    fn from(sent: WireDeployment<'_>) -> Self {
        let WireDeployment {
            mut metadata,
            spec,
            status,
        } = sent;
        let is_of_a_foo = metadata.controller().is_some_and(|owner| *owner.kind == *FOOS.kind);
        if !is_of_a_foo {
            metadata.labels.clear();
        }
        Self {
            spec: is_of_a_foo.then(|| spec.to_owned()),
            metadata,
            status,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CachedDeploymentStatus {
    pub(crate) available_replicas: i32,
    /// The generation that a Deployment controller has observed; zero if there is none.
    observed_generation: i64,
}

impl Projection for CachedDeployment {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl CachedDeployment {
    /// Returns whether `foo` controls this Deployment, and not another Foo of the same name.
    pub(crate) fn is_controlled_by(&self, foo: &CachedFoo) -> bool {
        self.metadata
            .controller()
            .is_some_and(|owner| *owner.uid == *foo.metadata.uid)
    }

    /// Returns whether a Deployment controller has ever observed this Deployment.
    pub(crate) fn is_observed(&self) -> bool {
        self.status.observed_generation > 0
    }

    /// Returns whether all Pods that the Deployment asks for are available.
    pub(crate) fn is_available(&self) -> bool {
        let replicas = self.own_spec().map_or(1, |spec| spec.replicas);
        let is_current = self.status.observed_generation >= self.metadata.generation;
        is_current && self.status.available_replicas >= replicas
    }

    /// Returns the selector of the Pods in the format of `labelSelector` parameters.
    pub(crate) fn label_selector(&self) -> Option<String> {
        self.own_spec().map(|spec| to_text(&spec.selector.match_labels))
    }

    fn own_spec(&self) -> Option<OwnSpec> {
        serde_json::from_str(self.spec.as_ref()?.get()).ok()
    }

    /// Returns the fields of `desired`, which is a [`desired`] Deployment, whose actual value
    /// differs.
    pub(crate) fn differences(&self, desired: &Value) -> Vec<String> {
        let mut differences = Vec::new();
        let metadata = &desired["metadata"];
        for (label, value) in metadata["labels"].as_object().into_iter().flatten() {
            if self.metadata.labels.get(&**label).map(|actual| &**actual) != value.as_str() {
                differences.push(format!("metadata.labels.{label}"));
            }
        }
        let owner = OwnerReference::deserialize(&metadata["ownerReferences"][0]).ok();
        if self.metadata.controller() != owner.as_ref() {
            differences.push("metadata.ownerReferences".to_owned());
        }
        // The apiserver sends valid JSON. If it did not, an apply would repair the spec.
        let actual = self.spec.as_ref().map(|spec| serde_json::from_str::<Value>(spec.get()));
        let actual = actual.and_then(Result::ok).unwrap_or_default();
        let of_spec = differing_fields(&actual, &desired["spec"]).into_iter();
        differences.extend(of_spec.map(|field| format!("spec{field}")));
        differences
    }
}

/// The fields of a Deployment's spec that are reported.
#[derive(Deserialize)]
struct OwnSpec {
    replicas: i32,
    selector: Selector,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
}

/// Returns the Deployment that `foo` asks for, with exactly the fields that the controller owns.
pub(crate) fn desired(foo: &CachedFoo) -> Object {
    let name = foo.spec.deployment_name.as_str();
    let key: ObjectKey = foo.metadata.key().with_name(name);
    let body = json!({
        "apiVersion": DEPLOYMENTS.api_version(),
        "kind": DEPLOYMENTS.kind,
        "metadata": {
            "name": name,
            "namespace": key.namespace,
            "labels": labels(foo),
            "ownerReferences": [OwnerReference::controller_owner_ref(&FOOS, &foo.metadata)],
        },
        "spec": spec(foo),
    });
    Object {
        resource: DEPLOYMENTS,
        key,
        body,
    }
}

fn labels(foo: &CachedFoo) -> BTreeMap<&'static str, &str> {
    BTreeMap::from([("app", "nginx"), ("controller", &*foo.metadata.name)])
}

/// Returns the selector that the Foo asks for, in the format of `labelSelector` parameters.
pub(crate) fn label_selector(foo: &CachedFoo) -> String {
    to_text(&labels(foo))
}

/// Returns `label=value`, joined by commas.
fn to_text<K: Display, V: Display>(labels: &BTreeMap<K, V>) -> String {
    let requirements: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
    requirements.join(",")
}

fn spec(foo: &CachedFoo) -> Value {
    json!({
        "replicas": foo.spec.replicas,
        "selector": { "matchLabels": labels(foo) },
        "template": {
            "metadata": { "labels": labels(foo) },
            "spec": { "containers": [{ "name": "nginx", "image": "nginx:latest" }] },
        },
    })
}

/// Returns the fields of `desired` that differ in `actual`, each as the path that follows the name
/// of the value. `actual` may have more: defaults, and fields of other managers.
///
/// List elements are matched by name, as server-side apply does.
fn differing_fields(actual: &Value, desired: &Value) -> Vec<String> {
    let below = |prefix: String, actual: &Value, desired: &Value| {
        let fields = differing_fields(actual, desired).into_iter();
        fields.map(|field| format!("{prefix}{field}")).collect::<Vec<_>>()
    };
    match (actual, desired) {
        (Value::Object(_), Value::Object(desired)) => {
            let fields = desired.iter();
            fields
                .flat_map(|(field, desired)| below(format!(".{field}"), &actual[field], desired))
                .collect()
        }
        (Value::Array(actual), Value::Array(desired)) => {
            let element = |desired: &Value| {
                let name = &desired["name"];
                let actual = actual.iter().find(|actual| actual["name"] == *name);
                let prefix = format!("[{}]", name.as_str().unwrap_or_default());
                below(prefix, actual.unwrap_or(&Value::Null), desired)
            };
            desired.iter().flat_map(element).collect()
        }
        _ if actual == desired => Vec::new(),
        _ => vec![String::new()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_fields_and_elements_are_no_differences() {
        let desired = json!({"replicas": 1, "containers": [{"name": "nginx", "image": "nginx:latest"}]});
        let table = [
            (desired.clone(), vec![]),
            (
                json!({"replicas": 1, "paused": true, "containers": [
                    {"name": "sidecar", "image": "x"}, {"name": "nginx", "image": "nginx:latest", "tty": true}]}),
                vec![],
            ),
            (
                json!({"replicas": 2, "containers": [{"name": "nginx", "image": "nginx:9.9"}]}),
                vec![".containers[nginx].image", ".replicas"],
            ),
            (
                json!({"replicas": 1, "containers": [{"name": "other", "image": "nginx:latest"}]}),
                vec![".containers[nginx]"],
            ),
            (json!({"replicas": 1}), vec![".containers"]),
            (Value::Null, vec![""]),
        ];
        for (actual, expected) in table {
            assert_eq!(differing_fields(&actual, &desired), expected, "{actual}");
        }
    }
}
