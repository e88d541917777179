//! The desired and the cached Deployment of a Foo.

use std::collections::BTreeMap;

use portreeve_api::{FOOS, Metadata, ObjectKey, OwnerReference, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::Object;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::CachedFoo;

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

    /// Returns whether all Pods that `foo` asks for are available.
    pub(crate) fn is_available(&self, foo: &CachedFoo) -> bool {
        let is_current = self.status.observed_generation >= self.metadata.generation;
        is_current && self.status.available_replicas >= foo.spec.replicas
    }

    /// Returns whether any field that `foo` owns differs from the desired value.
    pub(crate) fn has_drifted_from(&self, foo: &CachedFoo) -> bool {
        let labels = labels(foo);
        let labelled = labels.iter().all(|(label, value)| {
            let actual = self.metadata.labels.get(*label);
            actual.is_some_and(|actual| **actual == **value)
        });
        let owner = serde_json::from_value(OwnerReference::controller_owner_ref(&FOOS, &foo.metadata)).ok();
        let controlled = self.metadata.controller() == owner.as_ref();
        // The apiserver sends valid JSON. If it did not, an apply would repair the spec.
        let actual = self.spec.as_ref().map(|spec| serde_json::from_str::<Value>(spec.get()));
        let actual = actual.and_then(Result::ok).unwrap_or_default();
        !labelled || !controlled || !covers(&actual, &spec(foo))
    }
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

/// Returns the selector of the Foo's Pods in the format of `labelSelector` parameters.
pub(crate) fn label_selector(foo: &CachedFoo) -> String {
    let labels = labels(foo);
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

/// Returns whether `actual` has all values of `desired`. It may have more: defaults, and fields of
/// other managers.
///
/// List elements are matched by name, as server-side apply does.
fn covers(actual: &Value, desired: &Value) -> bool {
    match (actual, desired) {
        (Value::Object(actual), Value::Object(desired)) => desired
            .iter()
            .all(|(field, value)| actual.get(field).is_some_and(|actual| covers(actual, value))),
        (Value::Array(actual), Value::Array(desired)) => desired.iter().all(|value| {
            let same = |element: &&Value| element.get("name") == value.get("name");
            actual.iter().find(same).is_some_and(|element| covers(element, value))
        }),
        (actual, desired) => actual == desired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_ignores_additional_fields_and_elements() {
        let desired = json!({"replicas": 1, "containers": [{"name": "nginx", "image": "nginx:latest"}]});
        let table = [
            (
                json!({"replicas": 1, "containers": [{"name": "nginx", "image": "nginx:latest"}]}),
                true,
            ),
            (
                json!({"replicas": 1, "paused": true, "containers": [
                    {"name": "sidecar", "image": "x"}, {"name": "nginx", "image": "nginx:latest", "tty": true}]}),
                true,
            ),
            (
                json!({"replicas": 2, "containers": [{"name": "nginx", "image": "nginx:latest"}]}),
                false,
            ),
            (
                json!({"replicas": 1, "containers": [{"name": "nginx", "image": "nginx:9.9"}]}),
                false,
            ),
            (
                json!({"replicas": 1, "containers": [{"name": "other", "image": "nginx:latest"}]}),
                false,
            ),
            (json!({"replicas": 1}), false),
            (Value::Null, false),
        ];
        for (actual, expected) in table {
            assert_eq!(covers(&actual, &desired), expected, "{actual}");
        }
    }
}
