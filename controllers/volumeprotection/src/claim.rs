//! PersistentVolumeClaims, which are in use while a Pod with a node names them.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_api::{Metadata, OwnerReference, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::{Effect, Plan};
use serde::Deserialize;

use crate::{
    pod::{CachedPod, PODS, SCHEDULED},
    protection::{Need, ProtectedMetadata},
};

pub(crate) const CLAIMS: Resource = Resource::namespaced("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");
const FINALIZER: &str = "kubernetes.io/pvc-protection";

/// The fields of a claim that the informer stores.
#[derive(Debug, Deserialize)]
pub(crate) struct CachedClaim {
    metadata: ProtectedMetadata,
}

impl Projection for CachedClaim {
    fn metadata(&self) -> &Metadata {
        &self.metadata.base
    }
}

impl CachedClaim {
    fn controller(&self) -> Option<&OwnerReference> {
        self.metadata.base.controller()
    }

    /// Returns whether this Pod, which has a node, uses the claim.
    pub(crate) fn is_used_by(&self, pod: &CachedPod) -> bool {
        pod.uses(&self.metadata.base.name, self.controller())
    }
}

/// What a decision depends on.
pub(crate) struct Observed {
    pub(crate) claim: Arc<CachedClaim>,
    /// Whether a Pod in the cache uses it.
    pub(crate) is_used: bool,
}

/// Adds the finalizer, and removes it from a deleted claim that no Pod with a node uses. The cache
/// may lack such a Pod, so the apiserver must list none, either: the list begins after the deletion
/// of the claim.
pub(crate) fn decide(Observed { claim, is_used }: &Observed) -> Plan {
    let Some(need) = claim.metadata.need(FINALIZER) else {
        return Plan::nothing();
    };
    let replace = claim.metadata.replace(&CLAIMS, need, FINALIZER);
    match need {
        Need::Add => Plan::of(vec![replace]),
        Need::Remove if *is_used => Plan::nothing(),
        Need::Remove => {
            let pods = Effect::List {
                resource: PODS,
                namespace: claim.metadata.base.namespace.clone(),
                fields: SCHEDULED,
            };
            Plan::of(vec![pods, replace])
        }
    }
}

/// Returns whether a Pod of the list uses the claim. One that cannot be decoded may use it.
pub(crate) fn is_used_by_listed(claim: &CachedClaim, pod: &str) -> bool {
    serde_json::from_str(pod).map_or(true, |pod| claim.is_used_by(&pod))
}

#[cfg(test)]
mod tests;
