//! What objects are called outside of the graph.

use std::fmt;

use serde_json::{Value, json};

use crate::metadata::Reference;

/// An object by all that tells it from others: the coordinates at which it is asked for, and the UID that it has there.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Identity {
    /// Group and version.
    pub api_version: Box<str>,
    /// Kind.
    pub kind: Box<str>,
    /// `None` of an object of the cluster. Of one that is known by references alone it is the namespace of who refers to it.
    pub namespace: Option<Box<str>>,
    /// Name.
    pub name: Box<str>,
    /// UID.
    pub uid: Box<str>,
}

impl Identity {
    /// The owner that a dependent in this namespace means.
    pub(crate) fn of_owner(reference: &Reference, namespace: Option<&str>) -> Self {
        Self {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            namespace: namespace.map(Into::into),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
        }
    }
}

impl Identity {
    /// As pages name it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        })
    }
}

/// As the original prints it, in events and in its log: `[apps/v1/ReplicaSet, namespace: n, name: a, uid: u]`.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            api_version,
            kind,
            namespace,
            name,
            uid,
        } = self;
        let namespace = namespace.as_deref().unwrap_or_default();
        write!(
            f,
            "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]"
        )
    }
}
