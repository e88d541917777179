//! The API location of a kind: group, version, plural and scope.

use std::{borrow::Cow, fmt};

/// The API resource of CRDs.
pub const CRDS: Resource = Resource::cluster(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
);

/// Whether objects of a resource have a namespace.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Scope {
    /// Objects belong to the cluster.
    Cluster,
    /// Each object belongs to a namespace.
    Namespaced,
}

/// A resource of the API. Its strings are borrowed if the kind is known at compile time, and owned
/// if it comes from discovery.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// The version, such as `v1`.
    pub version: Cow<'static, str>,
    /// The kind, such as `Deployment`.
    pub kind: Cow<'static, str>,
    /// The plural name in URLs, such as `deployments`.
    pub plural: Cow<'static, str>,
    /// Whether its objects have a namespace.
    pub scope: Scope,
}

impl Resource {
    /// Returns a namespaced resource that is known at compile time.
    pub const fn namespaced(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self::from_static(group, version, kind, plural, Scope::Namespaced)
    }

    /// Returns a cluster-scoped resource that is known at compile time.
    pub const fn cluster(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self::from_static(group, version, kind, plural, Scope::Cluster)
    }

    const fn from_static(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        scope: Scope,
    ) -> Self {
        Self {
            group: Cow::Borrowed(group),
            version: Cow::Borrowed(version),
            kind: Cow::Borrowed(kind),
            plural: Cow::Borrowed(plural),
            scope,
        }
    }

    /// Returns the `apiVersion`: `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Returns `plural.group`, the name of this resource's CRD.
    pub fn crd_name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Returns whether the resource is defined by the CRD of this name.
    pub fn is_defined_by(&self, crd_name: &str) -> bool {
        let group = crd_name
            .strip_prefix(&*self.plural)
            .and_then(|rest| rest.strip_prefix('.'));
        group == Some(&*self.group)
    }

    /// Returns the URL path for list and create. Without a namespace, the path lists all
    /// namespaces.
    pub fn collection_path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        match namespace {
            Some(namespace) => format!("{root}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}/{}", self.plural),
        }
    }
}

/// Prints `plural.version.group`, as in kubectl, or `plural.version` in the core group.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.plural, self.version)?;
        if self.group.is_empty() {
            Ok(())
        } else {
            write!(f, ".{}", self.group)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_api_conventions() {
        let pods = Resource::namespaced("", "v1", "Pod", "pods");
        let nodes = Resource::cluster("", "v1", "Node", "nodes");
        let deployments = Resource::namespaced("apps", "v1", "Deployment", "deployments");
        assert_eq!(pods.collection_path(None), "/api/v1/pods");
        assert_eq!(pods.collection_path(Some("a")), "/api/v1/namespaces/a/pods");
        assert_eq!(nodes.collection_path(None), "/api/v1/nodes");
        assert_eq!(
            deployments.collection_path(Some("a")),
            "/apis/apps/v1/namespaces/a/deployments"
        );
        assert_eq!(deployments.api_version(), "apps/v1");
        assert_eq!(pods.api_version(), "v1");
        assert_eq!(deployments.to_string(), "deployments.v1.apps");
        assert_eq!(pods.to_string(), "pods.v1");
    }
}
