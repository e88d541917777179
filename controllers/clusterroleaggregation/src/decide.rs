//! Decides which rules an aggregated role has.
//!
//! Architecture Invariant: pure.

use std::{collections::HashSet, sync::Arc};

use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Object, Plan};
use serde_json::json;

use crate::role::{CLUSTER_ROLES, CachedRole, PolicyRule};

/// What a decision depends on.
pub(crate) struct Observed {
    /// The role, which aggregates others.
    pub(crate) role: Arc<CachedRole>,
    /// All roles, sorted by name.
    pub(crate) all: Vec<Arc<CachedRole>>,
}

/// Applies the rules of all selected roles, unless the role has them. Their order has no meaning,
/// so another order is no reason to write: otherwise roles that aggregate each other could reorder
/// theirs for ever.
pub(crate) fn decide(observed: &Observed) -> Plan {
    let Observed { role, all } = observed;
    let wanted = selected_rules(role, all);
    let metadata = role.metadata();
    if metadata.is_terminating() || sorted(wanted.iter().copied()) == sorted(&role.rules) {
        return Plan::nothing();
    }
    // Rules that are left out would stay if another manager owns them, so an empty list is sent.
    let body = json!({
        "apiVersion": CLUSTER_ROLES.api_version(),
        "kind": CLUSTER_ROLES.kind,
        "metadata": {"name": metadata.name},
        "rules": wanted,
    });
    Plan::of(vec![Effect::Apply {
        object: Object {
            resource: CLUSTER_ROLES,
            key: metadata.key(),
            body,
        },
        uid: Arc::clone(&metadata.uid),
        version: Arc::clone(&metadata.resource_version),
    }])
}

/// Returns the distinct rules of the selected roles, by selector and name, as
/// kube-controller-manager orders them.
fn selected_rules<'a>(role: &CachedRole, all: &'a [Arc<CachedRole>]) -> Vec<&'a PolicyRule> {
    let mut known = HashSet::new();
    let mut rules = Vec::new();
    for selector in role.selectors() {
        for other in all {
            let (metadata, is_other) = (other.metadata(), other.metadata().name != role.metadata().name);
            if is_other && selector.matches(&metadata.labels) {
                rules.extend(other.rules.iter().filter(|rule| known.insert(*rule)));
            }
        }
    }
    rules
}

fn sorted<'a>(rules: impl IntoIterator<Item = &'a PolicyRule>) -> Vec<&'a PolicyRule> {
    let mut rules: Vec<_> = rules.into_iter().collect();
    rules.sort_unstable();
    rules
}

#[cfg(test)]
mod tests;
