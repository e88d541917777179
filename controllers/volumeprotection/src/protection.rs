//! What both controllers share: a finalizer that protects an object in use.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::{Metadata, OwnerReference, Resource, null_as_default};
use portreeve_reconcile::{Effect, Target};
use serde::Deserialize;
use serde_json::json;

/// Metadata with the finalizers.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Fields")]
pub(crate) struct ProtectedMetadata {
    /// The metadata without what no decision needs, such as labels.
    pub(crate) base: Metadata,
    finalizers: Box<[Box<str>]>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    #[serde(default)]
    namespace: Option<Arc<str>>,
    #[serde(default)]
    name: Arc<str>,
    #[serde(default)]
    uid: Arc<str>,
    #[serde(default)]
    resource_version: Arc<str>,
    #[serde(default)]
    deletion_timestamp: Option<Timestamp>,
    #[serde(default, deserialize_with = "null_as_default")]
    owner_references: Vec<OwnerReference>,
    #[serde(default, deserialize_with = "null_as_default")]
    finalizers: Box<[Box<str>]>,
}

impl From<Fields> for ProtectedMetadata {
    fn from(fields: Fields) -> Self {
        let base = Metadata {
            namespace: fields.namespace,
            name: fields.name,
            uid: fields.uid,
            resource_version: fields.resource_version,
            deletion_timestamp: fields.deletion_timestamp,
            owner_references: fields.owner_references,
            ..Metadata::default()
        };
        let finalizers = fields.finalizers;
        Self { base, finalizers }
    }
}

/// What the finalizer of an object needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Need {
    /// The object is not being deleted and lacks the finalizer. Usually the apiserver has added it.
    Add,
    /// The object is being deleted. The finalizer has to go once it is not in use.
    Remove,
}

impl ProtectedMetadata {
    /// Returns what this finalizer needs, if anything.
    pub(crate) fn need(&self, finalizer: &str) -> Option<Need> {
        let is_protected = self.finalizers.iter().any(|known| **known == *finalizer);
        match (self.base.is_terminating(), is_protected) {
            (false, false) => Some(Need::Add),
            (true, true) => Some(Need::Remove),
            _ => None,
        }
    }

    /// Returns the replacement of the object by one with this finalizer, or without it. The version
    /// of the object is that of its finalizers here, so nobody else's change is undone.
    pub(crate) fn replace(&self, resource: &Resource, need: Need, finalizer: &str) -> Effect {
        let others = self.finalizers.iter().map(|known| &**known);
        let mut finalizers: Vec<_> = others.filter(|known| *known != finalizer).collect();
        if need == Need::Add {
            finalizers.push(finalizer);
        }
        Effect::Replace {
            target: Target::of(resource, &self.base),
            subresource: None,
            changes: json!({"metadata": {"finalizers": finalizers}}),
        }
    }
}
