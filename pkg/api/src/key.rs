//! The name of an object within its resource.

use std::{fmt, sync::Arc};

/// Namespace and name: the key of work queues and stores.
///
/// Cheap to clone, because both parts are shared.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectKey {
    /// `None` for a cluster-scoped object.
    pub namespace: Option<Arc<str>>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// Returns the key of an object in a namespace.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// Returns the key of a cluster-scoped object.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: None,
            name: name.into(),
        }
    }

    /// Returns the key of another object in the same namespace. The key is cluster-scoped if this
    /// one is.
    #[must_use]
    pub fn with_name(&self, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: self.namespace.clone(),
            name: name.into(),
        }
    }
}

/// Prints `namespace/name`, or the name of a cluster-scoped object, as in the logs and queues of
/// Kubernetes.
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
    fn keys_are_printed_in_the_format_of_kubernetes() {
        assert_eq!(ObjectKey::namespaced("default", "backup").to_string(), "default/backup");
        assert_eq!(ObjectKey::cluster("node-1").to_string(), "node-1");
        assert_eq!(
            ObjectKey::namespaced("default", "a").with_name("b"),
            ObjectKey::namespaced("default", "b")
        );
    }
}
