//! How an object is named within its resource.

use std::{fmt, sync::Arc};

/// Namespace and name: what a work queue carries and a store looks up.
///
/// Cheap to clone: both parts are shared.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// `None` for a cluster-scoped object.
    pub namespace: Option<Arc<str>>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of an object in a namespace.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: None,
            name: name.into(),
        }
    }

    /// Another object's key in the same namespace (or in none, like this one).
    #[must_use]
    pub fn with_name(&self, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name: name.into(),
        }
    }
}

/// `namespace/name`, or the bare name of a cluster-scoped object, as Kubernetes logs and queues print it.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_print_as_kubernetes_prints_them() {
        assert_eq!(ObjectKey::namespaced("default", "backup").to_string(), "default/backup");
        assert_eq!(ObjectKey::cluster("node-1").to_string(), "node-1");
        assert_eq!(
            ObjectKey::namespaced("default", "a").with_name("b"),
            ObjectKey::namespaced("default", "b")
        );
    }
}
