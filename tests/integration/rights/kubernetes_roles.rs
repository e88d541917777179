//! The roles of kube-controller-manager's controllers, which the apiserver creates: ours with the
//! same name need no more.

use anyhow::{Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::Api;
use portreeve_reconcile::{Descriptor, Rule};
use portreeve_testing::ControlPlane;

/// The role of kube-controller-manager itself. Informers, and some reads, use it there.
const MANAGER: &str = "system:kube-controller-manager";

const ROLES: &[(Descriptor, &str)] = &[
    (
        portreeve_clusterroleaggregation::DESCRIPTOR,
        "system:controller:clusterrole-aggregation-controller",
    ),
    (portreeve_crontab::CRONJOB, "system:controller:cronjob-controller"),
    (
        portreeve_garbagecollector::DESCRIPTOR,
        "system:controller:generic-garbage-collector",
    ),
    (
        portreeve_namespace::DESCRIPTOR,
        "system:controller:namespace-controller",
    ),
    (
        portreeve_volumeprotection::VOLUME_PROTECTION,
        "system:controller:pv-protection-controller",
    ),
    (
        portreeve_volumeprotection::CLAIM_PROTECTION,
        "system:controller:pvc-protection-controller",
    ),
    (portreeve_rootca::DESCRIPTOR, "system:controller:root-ca-cert-publisher"),
    (
        portreeve_serviceaccount::DESCRIPTOR,
        "system:controller:service-account-controller",
    ),
    (
        portreeve_ttlafterfinished::DESCRIPTOR,
        "system:controller:ttl-after-finished-controller",
    ),
];

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
    for (descriptor, name) in ROLES {
        let grants = roles.get(name).await?.rules.unwrap_or_default();
        let missing: Vec<_> = descriptor
            .rules
            .iter()
            .flat_map(|needed| missing(needed, &grants, &of_manager))
            .collect();
        ensure!(missing.is_empty(), "{name} lacks {missing:?} of {}", descriptor.name);
    }
    Ok(())
}
