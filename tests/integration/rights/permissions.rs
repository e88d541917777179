//! Splits the roles that `portreeve rbac` prints into single permissions: one verb on one resource
//! each.

use std::{collections::BTreeMap, fmt};

use anyhow::Result;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::Value;

use crate::fixtures::{daemon::printed, manifests};

/// The smallest part of a role that can be revoked: one verb on one resource.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Permission {
    pub(super) group: String,
    /// The resource with its subresource, as in `foos/status`.
    pub(super) resource: String,
    pub(super) verb: String,
    names: Option<Vec<String>>,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}.{}", self.verb, self.resource, self.group)
    }
}

impl Permission {
    /// Returns a part of the apiserver's message when this permission is missing, if no request
    /// uses it. An admission plugin checks permissions on finalizers when an owner reference sets
    /// `blockOwnerDeletion`, and writes of roles are checked for `escalate`.
    pub(super) fn indirect_rejection(&self) -> Option<&'static str> {
        if self.resource.ends_with("/finalizers") {
            Some("refers to a resource you can't set finalizers on")
        } else if self.verb == "escalate" {
            Some("is attempting to grant RBAC permissions not currently held")
        } else {
            None
        }
    }

    pub(super) fn rule(&self) -> PolicyRule {
        PolicyRule {
            api_groups: Some(vec![self.group.clone()]),
            resources: Some(vec![self.resource.clone()]),
            verbs: vec![self.verb.clone()],
            resource_names: self.names.clone(),
            ..PolicyRule::default()
        }
    }
}

/// Returns the permissions of each role that `portreeve rbac` prints, by role name.
pub(super) fn printed_roles(args: &[&str]) -> Result<BTreeMap<String, Vec<Permission>>> {
    let mut roles = BTreeMap::new();
    for document in manifests::documents(&printed(&[&["rbac"], args].concat())?)? {
        if let Some(rules) = document["rules"].as_array() {
            let name = document["metadata"]["name"].as_str().unwrap_or_default();
            roles.insert(name.to_owned(), rules.iter().flat_map(permissions_of_rule).collect());
        }
    }
    Ok(roles)
}

fn permissions_of_rule(rule: &Value) -> Vec<Permission> {
    let list = |field: &str| {
        let items = rule[field].as_array()?;
        Some(
            items
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    };
    let mut permissions = Vec::new();
    for group in list("apiGroups").unwrap_or_default() {
        for resource in list("resources").unwrap_or_default() {
            permissions.extend(list("verbs").unwrap_or_default().into_iter().map(|verb| Permission {
                group: group.clone(),
                resource: resource.clone(),
                verb,
                names: list("resourceNames"),
            }));
        }
    }
    permissions
}
