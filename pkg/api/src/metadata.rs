//! The fields of `metadata` that controllers use.
//!
//! A typed ObjectMeta with its managedFields takes about 13 kB per object; this type takes a few
//! hundred bytes. The decoder skips all other fields and never stores them.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, de::IgnoredAny};

use crate::{ObjectKey, Resource};

/// An object's identity, version, owners and labels.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(from = "Fields<IgnoredAny>")]
pub struct Metadata {
    /// `None` for a cluster-scoped object.
    pub namespace: Option<Arc<str>>,
    /// Unique within the namespace and resource.
    pub name: Arc<str>,
    /// Unique in time and space: a recreated object has a different one.
    pub uid: Arc<str>,
    /// Opaque. Compare it only for equality.
    pub resource_version: Arc<str>,
    /// Incremented by each change of the desired state.
    pub generation: i64,
    /// The time of creation by the apiserver's clock, in whole seconds.
    pub creation_timestamp: Option<Timestamp>,
    /// Set after a client has requested deletion.
    pub deletion_timestamp: Option<Timestamp>,
    /// Sorted by key.
    pub labels: BTreeMap<Box<str>, Box<str>>,
    /// In the order of the object's list.
    pub owner_references: Vec<OwnerReference>,
}

impl Metadata {
    /// Returns namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.namespace.clone(),
            name: Arc::clone(&self.name),
        }
    }

    /// Returns the owner that manages this object, or `None`. At most one reference has
    /// `controller` set.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    /// Returns whether a client has requested deletion.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// Metadata with those annotations that `A` reads.
///
/// Each field is read directly. With `serde(flatten)`, serde would first store the whole metadata,
/// including `managedFields`, which is often longer than the rest of the object.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound = "A: Deserialize<'de>", from = "Fields<A>")]
pub struct AnnotatedMetadata<A> {
    /// The metadata without annotations.
    pub base: Metadata,
    /// The annotations, or `None` if the object has none.
    pub annotations: Option<A>,
}

/// How the fields of [`Metadata`] and the annotations are read.
#[derive(Deserialize)]
#[serde(bound = "A: Deserialize<'de>", rename_all = "camelCase")]
struct Fields<A> {
    #[serde(default)]
    namespace: Option<Arc<str>>,
    #[serde(default)]
    name: Arc<str>,
    #[serde(default)]
    uid: Arc<str>,
    #[serde(default)]
    resource_version: Arc<str>,
    #[serde(default)]
    generation: i64,
    #[serde(default)]
    creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    deletion_timestamp: Option<Timestamp>,
    #[serde(default, deserialize_with = "null_as_default")]
    labels: BTreeMap<Box<str>, Box<str>>,
    #[serde(default, deserialize_with = "null_as_default")]
    owner_references: Vec<OwnerReference>,
    #[serde(default)]
    annotations: Option<A>,
}

impl From<Fields<IgnoredAny>> for Metadata {
    fn from(fields: Fields<IgnoredAny>) -> Self {
        AnnotatedMetadata::from(fields).base
    }
}

impl<A> From<Fields<A>> for AnnotatedMetadata<A> {
    fn from(fields: Fields<A>) -> Self {
        let Fields {
            namespace,
            name,
            uid,
            resource_version,
            generation,
            creation_timestamp,
            deletion_timestamp,
            labels,
            owner_references,
            annotations,
        } = fields;
        let base = Metadata {
            namespace,
            name,
            uid,
            resource_version,
            generation,
            creation_timestamp,
            deletion_timestamp,
            labels,
            owner_references,
        };
        Self { base, annotations }
    }
}

/// A reference from a dependent to its owner, which is in the same namespace or cluster-scoped.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    /// Group and version of the owner.
    pub api_version: Box<str>,
    /// Kind of the owner.
    pub kind: Box<str>,
    /// Name of the owner.
    pub name: Box<str>,
    /// UID of the owner, which is the only permanent identifier.
    pub uid: Box<str>,
    /// Whether the owner manages this object.
    pub controller: bool,
    /// Whether foreground deletion of the owner waits for this object. It is part of equality, so a
    /// changed value counts as drift.
    pub block_owner_deletion: bool,
}

impl OwnerReference {
    /// Returns the JSON of a controller reference to `owner` like `metav1.NewControllerRef`, with
    /// `controller` and `blockOwnerDeletion` set.
    pub fn controller_owner_ref(resource: &Resource, owner: &Metadata) -> serde_json::Value {
        serde_json::json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "name": owner.name,
            "uid": owner.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        })
    }
}

/// Decodes `null` as the default. In Kubernetes' JSON, `null` and an absent field have the same
/// meaning.
///
/// # Errors
///
/// Returns an error when a value other than `null` cannot be decoded.
pub fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Color {
        color: Option<Box<str>>,
    }

    #[test]
    fn annotated_metadata_has_the_same_fields() {
        let json = json!({
            "namespace": "n", "name": "a", "uid": "u", "resourceVersion": "7", "generation": 3,
            "creationTimestamp": "2026-01-02T03:04:05Z", "deletionTimestamp": "2026-01-02T03:04:06Z",
            "labels": {"app": "web"}, "managedFields": [{"manager": "kubectl"}],
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "o", "controller": true}],
            "annotations": {"color": "red", "other": "x"},
        });
        let plain: Metadata = serde_json::from_value(json.clone()).unwrap();
        let annotated: AnnotatedMetadata<Color> = serde_json::from_value(json).unwrap();
        assert_eq!(annotated.base, plain);
        assert_eq!(annotated.annotations.unwrap().color.as_deref(), Some("red"));
    }

    #[test]
    fn annotated_metadata_may_lack_every_field() {
        for json in [
            json!({}),
            json!({"labels": null, "ownerReferences": null, "annotations": null}),
        ] {
            let annotated: AnnotatedMetadata<Color> = serde_json::from_value(json).unwrap();
            assert_eq!(annotated.base, Metadata::default());
            assert!(annotated.annotations.is_none());
        }
    }

    #[test]
    fn metadata_decodes_its_fields_and_skips_the_rest() {
        let metadata: Metadata = serde_json::from_str(
            r#"{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":2,"labels":null,
                "managedFields":[{"manager":"x"}],"deletionTimestamp":"2026-01-02T03:04:05Z",
                "ownerReferences":[{"apiVersion":"v1","kind":"Foo","name":"o","uid":"1"},
                                   {"apiVersion":"v1","kind":"Foo","name":"p","uid":"2","controller":true}]}"#,
        )
        .expect("valid metadata");
        assert_eq!(metadata.key(), ObjectKey::namespaced("n", "a"));
        assert_eq!(metadata.controller().map(|owner| &*owner.uid), Some("2"));
        assert!(metadata.is_terminating());
        assert!(metadata.labels.is_empty());
    }
}
