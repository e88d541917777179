//! ClusterRoles: their rules, and what they aggregate.
//!
//! Architecture Invariant: pure.

use portreeve_api::{Metadata, Resource, null_as_default};
use portreeve_informer::Projection;
use serde::{Deserialize, Serialize};

use crate::selector::Selector;

pub(crate) const CLUSTER_ROLES: Resource =
    Resource::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");

/// The fields of a ClusterRole that the informer stores.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CachedRole {
    metadata: Metadata,
    #[serde(default, deserialize_with = "null_as_default")]
    pub(crate) rules: Box<[PolicyRule]>,
    #[serde(default)]
    aggregation_rule: Option<AggregationRule>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregationRule {
    #[serde(default, deserialize_with = "null_as_default")]
    cluster_role_selectors: Box<[Selector]>,
}

/// A rule. An empty list and an absent one have the same meaning.
#[derive(Clone, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PolicyRule {
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Texts::is_empty")]
    verbs: Texts,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Texts::is_empty")]
    api_groups: Texts,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Texts::is_empty")]
    resources: Texts,
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Texts::is_empty")]
    resource_names: Texts,
    #[serde(
        rename = "nonResourceURLs",
        deserialize_with = "null_as_default",
        skip_serializing_if = "Texts::is_empty"
    )]
    non_resource_urls: Texts,
}

type Texts = Vec<Box<str>>;

impl Projection for CachedRole {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl CachedRole {
    /// Returns whether the rules of the role are those of others.
    pub(crate) fn aggregates(&self) -> bool {
        self.aggregation_rule.is_some()
    }

    /// Returns the selectors of the roles that it aggregates.
    pub(crate) fn selectors(&self) -> &[Selector] {
        match &self.aggregation_rule {
            Some(rule) => &rule.cluster_role_selectors,
            None => &[],
        }
    }

    /// Returns whether it aggregates this role. No role aggregates itself.
    pub(crate) fn selects(&self, other: &Self) -> bool {
        let matches = |selector: &Selector| selector.matches(&other.metadata.labels);
        self.metadata.name != other.metadata.name && self.selectors().iter().any(matches)
    }
}
