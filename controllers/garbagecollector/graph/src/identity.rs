//! How objects are identified outside the graph.

use std::fmt;

use serde_json::{Value, json};

use crate::metadata::Reference;

/// The full identity of an object: its coordinates and its UID. The coordinates of an object are
/// its apiVersion, kind, namespace and name, by which the apiserver finds it.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    /// The group and version.
    pub api_version: Box<str>,
    /// The kind.
    pub kind: Box<str>,
    /// The namespace; `None` for a cluster-scoped object. For an object that is known only from
    /// references, it is the namespace of the dependent.
    pub namespace: Option<Box<str>>,
    /// The name.
    pub name: Box<str>,
    /// The UID.
    pub uid: Box<str>,
}

impl Identity {
    /// Returns the owner that `reference` of a dependent in this namespace denotes.
    pub(crate) fn of_owner(reference: &Reference, namespace: Option<&str>) -> Self {
        Self {
            api_version: reference.api_version.clone(),
            kind: reference.kind.clone(),
            namespace: namespace.map(Into::into),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
        }
    }

    /// Returns the JSON form that the debug pages show.
    pub fn to_json(&self) -> Value {
        json!({
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        })
    }
}

/// Formats it as kube-controller-manager does in events and logs:
/// `[apps/v1/ReplicaSet, namespace: n, name: a, uid: u]`.
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
