//! Builders of objects that a test creates.

use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Value, json};

/// A builder of a manifest. The client that creates the object adds its namespace.
#[derive(Clone)]
pub(crate) struct ObjectBuilder(Value);

pub(crate) fn pod(name: &str) -> ObjectBuilder {
    let container = json!({"name": "fake-name", "image": "fakeimage"});
    ObjectBuilder::new("v1", "Pod", name).with("spec", json!({"containers": [container]}))
}

pub(crate) fn replication_controller(name: &str) -> ObjectBuilder {
    let labels = json!({"name": "test"});
    let container = json!({"name": "fake-name", "image": "fakeimage"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
    ObjectBuilder::new("v1", "ReplicationController", name)
        .with("spec", json!({"selector": labels, "template": template}))
}

pub(crate) fn config_map(name: &str) -> ObjectBuilder {
    ObjectBuilder::new("v1", "ConfigMap", name)
}

pub(crate) fn secret(name: &str) -> ObjectBuilder {
    ObjectBuilder::new("v1", "Secret", name)
}

pub(crate) fn persistent_volume(name: &str) -> ObjectBuilder {
    let spec = json!({
        "hostPath": {"path": "/foo"},
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteMany"],
    });
    ObjectBuilder::new("v1", "PersistentVolume", name).with("spec", spec)
}

impl ObjectBuilder {
    pub(crate) fn new(api_version: &str, kind: &str, name: &str) -> Self {
        Self(json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}))
    }

    /// Adds an owner reference.
    pub(crate) fn owner(mut self, reference: Value) -> Self {
        let owners = &mut self.0["metadata"]["ownerReferences"];
        match owners.as_array_mut() {
            Some(owners) => owners.push(reference),
            None => *owners = json!([reference]),
        }
        self
    }

    /// Adds an owner whose deletion does not wait for this object.
    pub(crate) fn owned_by(self, owner: &DynamicObject) -> Self {
        self.owner(reference(owner))
    }

    /// Adds an owner, with an explicit `blockOwnerDeletion`.
    pub(crate) fn blocking(self, owner: &DynamicObject, is_blocking: bool) -> Self {
        let mut reference = reference(owner);
        reference["blockOwnerDeletion"] = is_blocking.into();
        self.owner(reference)
    }

    pub(crate) fn finalizer(mut self, finalizer: &str) -> Self {
        self.0["metadata"]["finalizers"] = json!([finalizer]);
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    pub(crate) fn namespace(mut self, namespace: &str) -> Self {
        self.0["metadata"]["namespace"] = namespace.into();
        self
    }

    pub(crate) fn into_object(self) -> serde_json::Result<DynamicObject> {
        serde_json::from_value(self.0)
    }

    fn with(mut self, field: &str, value: Value) -> Self {
        self.0[field] = value;
        self
    }
}

/// Returns an owner reference to an object.
pub(crate) fn reference(owner: &DynamicObject) -> Value {
    let types = owner.types.as_ref();
    json!({
        "apiVersion": types.map(|types| &types.api_version),
        "kind": types.map(|types| &types.kind),
        "name": owner.name_any(),
        "uid": owner.metadata.uid,
    })
}
