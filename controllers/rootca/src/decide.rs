//! Decides whether the ConfigMap of a namespace must be written.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use portreeve_informer::MetadataOnly;
use portreeve_reconcile::Plan;

use crate::map::{CachedMap, create};

/// What a decision depends on.
pub(crate) struct Observed {
    pub(crate) namespace: Arc<MetadataOnly>,
    pub(crate) map: Option<Arc<CachedMap>>,
    /// The CA in PEM.
    pub(crate) ca: Arc<str>,
}

/// Creates the ConfigMap or replaces its data, unless the namespace is being deleted.
pub(crate) fn decide(observed: &Observed) -> Plan {
    let Observed { namespace, map, ca } = observed;
    if namespace.metadata.is_terminating() {
        return Plan::nothing();
    }
    match map {
        None => Plan::of(vec![create(&namespace.metadata.name, ca)]),
        Some(map) if map.is_right(ca) => Plan::nothing(),
        Some(map) => Plan::of(vec![map.replace(ca)]),
    }
}

#[cfg(test)]
mod tests;
