//! Connects the decisions of `expiry` with the cache of one kind.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::ObjectKey;
use portreeve_informer::Informer;
use portreeve_reconcile::{Effect, Plan, Reconciler};

use crate::expiry::{self, Expiring};

/// Deletes each object once its lifetime has expired.
pub(crate) struct TtlReconciler<K> {
    pub(crate) objects: Informer<K>,
}

impl<K: Expiring> Reconciler for TtlReconciler<K> {
    type Observed = Arc<K>;

    fn observe(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.objects.get(key)
    }

    fn decide(&self, observed: &Arc<K>, now: Timestamp) -> Plan {
        expiry::decide(&**observed, now)
    }

    fn refused(&self, observed: &Arc<K>, _effect: &Effect, why: &str, _now: Timestamp) -> Plan {
        expiry::refused(&**observed, why)
    }
}
