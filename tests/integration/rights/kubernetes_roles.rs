//! The roles of kube-controller-manager's controllers, which the apiserver creates: ours with the
//! same name need no more.

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::Api;
use portreeve_reconcile::Rule;
use portreeve_testing::ControlPlane;

use crate::registry::PROFILES;

/// The role of kube-controller-manager itself. Informers, and some reads, use it there.
const MANAGER: &str = "system:kube-controller-manager";

fn contains(list: Option<&Vec<String>>, item: &str) -> bool {
    list.is_some_and(|list| list.iter().any(|known| known == item || known == "*"))
}

/// Returns the permissions of this rule that no rule of the role grants, nor one of the manager's
/// role if they are reads.
fn missing(needed: &Rule, grants: &[PolicyRule], of_manager: &[PolicyRule]) -> Vec<String> {
    let mut missing = Vec::new();
    for group in needed.groups {
        for resource in needed.resources {
            for verb in needed.verbs {
                let is_read = ["get", "list", "watch"].contains(verb);
                let reads = of_manager.iter().filter(|_| is_read);
                let is_granted = grants.iter().chain(reads).any(|grant| {
                    contains(grant.api_groups.as_ref(), group)
                        && contains(grant.resources.as_ref(), resource)
                        && contains(Some(&grant.verbs), verb)
                });
                if !is_granted {
                    missing.push(format!("{verb} {resource}.{group}"));
                }
            }
        }
    }
    missing
}

#[tokio::test]
async fn the_roles_of_kubernetes_controllers_suffice() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let roles: Api<ClusterRole> = Api::all(plane.client()?);
    let of_manager = roles.get(MANAGER).await?.rules.unwrap_or_default();
    for profile in PROFILES {
        let Some(name) = profile.kubernetes_role else {
            continue;
        };
        let grants = roles.get(name).await?.rules.unwrap_or_default();
        let needed = profile.descriptor.rules.iter();
        let missing: Vec<_> = needed.flat_map(|rule| missing(rule, &grants, &of_manager)).collect();
        let ours = profile.descriptor.name;
        ensure!(missing.is_empty(), "{name} lacks {missing:?} of {ours}");
    }
    Ok(())
}
