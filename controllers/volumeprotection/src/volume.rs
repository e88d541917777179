//! PersistentVolumes, which are in use while they are bound.
//!
//! Architecture Invariant: pure.

use portreeve_api::{Metadata, Resource};
use portreeve_informer::Projection;
use portreeve_reconcile::Plan;
use serde::Deserialize;

use crate::protection::{Need, ProtectedMetadata};

pub(crate) const VOLUMES: Resource = Resource::cluster("", "v1", "PersistentVolume", "persistentvolumes");
const FINALIZER: &str = "kubernetes.io/pv-protection";

/// The fields of a volume that the informer stores.
#[derive(Debug, Deserialize)]
pub(crate) struct CachedVolume {
    metadata: ProtectedMetadata,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Box<str>,
}

impl Projection for CachedVolume {
    fn metadata(&self) -> &Metadata {
        &self.metadata.base
    }
}

/// Adds the finalizer, and removes it from a deleted volume that is not bound.
pub(crate) fn decide(volume: &CachedVolume) -> Plan {
    let need = match volume.metadata.need(FINALIZER) {
        None => return Plan::nothing(),
        Some(Need::Remove) if *volume.status.phase == *"Bound" => return Plan::nothing(),
        Some(need) => need,
    };
    Plan::of(vec![volume.metadata.replace(&VOLUMES, need, FINALIZER)])
}

#[cfg(test)]
mod tests {
    use portreeve_reconcile::Effect;
    use serde_json::{Value, json};

    use super::*;

    /// Returns the finalizers that the plan for a volume writes.
    fn written(is_deleted: bool, finalizers: &[&str], phase: &str) -> Option<Value> {
        let mut metadata = json!({"name": "v", "uid": "u", "resourceVersion": "7", "finalizers": finalizers});
        if is_deleted {
            metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
        }
        let volume = serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap();
        match decide(&volume).effects.pop()? {
            Effect::Replace { target, changes, .. } => {
                assert_eq!((&*target.uid, &*target.version), ("u", "7"));
                Some(changes["metadata"]["finalizers"].clone())
            }
            other => panic!("{other}"),
        }
    }

    /// The table of Kubernetes' `TestPVProtectionController`. Its cases in which a write fails are
    /// the applier's.
    #[test]
    fn test_pv_protection_controller() {
        let own = FINALIZER;
        let table = [
            ("without finalizer", false, &[][..], "Available", Some(json!([own]))),
            ("with finalizer", false, &[own], "Available", None),
            ("deleted", true, &[own], "Available", Some(json!([]))),
            ("deleted, bound", true, &[own], "Bound", None),
            // These are ours.
            ("deleted, without finalizer", true, &["a/b"], "Available", None),
            ("others'", false, &["a/b"], "Available", Some(json!(["a/b", own]))),
            (
                "deleted, others'",
                true,
                &["a/b", own, "c/d"],
                "Released",
                Some(json!(["a/b", "c/d"])),
            ),
            ("deleted, no phase", true, &[own], "", Some(json!([]))),
        ];
        for (name, is_deleted, finalizers, phase, expected) in table {
            assert_eq!(written(is_deleted, finalizers, phase), expected, "{name}");
        }
    }
}
