//! Connects the decisions with the caches.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::ObjectKey;
use portreeve_informer::{Index, Informer};
use portreeve_reconcile::{Effect, Plan, Reconciler, RequestState};

use crate::{
    claim::{self, CachedClaim},
    pod::CachedPod,
    volume::{self, CachedVolume},
};

/// Protects claims.
pub(crate) struct ClaimReconciler {
    pub(crate) claims: Informer<CachedClaim>,
    pub(crate) pods_by_claim: Index<CachedPod>,
}

impl Reconciler for ClaimReconciler {
    type Observed = claim::Observed;

    fn observe(&self, key: &ObjectKey) -> Option<claim::Observed> {
        let claim = self.claims.get(key)?;
        let pods = self.pods_by_claim.get(&key.to_string());
        let is_used = pods.iter().any(|pod| claim.is_used_by(pod));
        Some(claim::Observed { claim, is_used })
    }

    fn decide(&self, observed: &claim::Observed, _now: Timestamp) -> Plan {
        claim::decide(observed)
    }

    fn observe_request(&self, observed: &claim::Observed, _effect: &Effect, state: RequestState<'_>) -> bool {
        match state {
            RequestState::Listed(pod) => claim::is_used_by_listed(&observed.claim, pod.get()),
            _ => false,
        }
    }
}

/// Protects volumes.
pub(crate) struct VolumeReconciler(pub(crate) Informer<CachedVolume>);

impl Reconciler for VolumeReconciler {
    type Observed = Arc<CachedVolume>;

    fn observe(&self, key: &ObjectKey) -> Option<Arc<CachedVolume>> {
        self.0.get(key)
    }

    fn decide(&self, volume: &Arc<CachedVolume>, _now: Timestamp) -> Plan {
        volume::decide(volume)
    }
}
