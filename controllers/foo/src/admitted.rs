//! What admission made of the Deployments that this process has written: a policy may, for example,
//! replace the registry of every image.
//!
//! Without it, every change of such a Deployment would cause a write that changes nothing, and its
//! Foo would never be ready.
//!
//! Architecture Invariant: pure.

use portreeve_api::Metadata;
use portreeve_reconcile::{Effect, Object};
use serde_json::Value;

use crate::deployment::CachedDeployment;

/// A write of a Deployment whose result differs from what was written.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    written: Value,
    /// That of the result.
    metadata: Metadata,
}

impl Admitted {
    /// Returns the result of a write, given the apiserver's response. Returns `None` if the result
    /// has all values that were written.
    pub(crate) fn of(written: &Object, response: &str) -> Option<Self> {
        let result: CachedDeployment = serde_json::from_str(response).ok()?;
        let written = &written.body;
        (!result.differences(written).is_empty()).then(|| Self {
            written: written.clone(),
            metadata: result.metadata,
        })
    }

    /// Returns whether the same write of the same Deployment has led to its current state. Then
    /// another one would change nothing while admission is as it was. Only the status of the
    /// Deployment may have changed since: its generation counts all changes of its spec and its
    /// annotations.
    pub(crate) fn explains(&self, deployment: &CachedDeployment, desired: &Value) -> bool {
        let (admitted, current) = (&self.metadata, &deployment.metadata);
        self.written == *desired
            && admitted.uid == current.uid
            && admitted.generation == current.generation
            && admitted.labels == current.labels
            && admitted.owner_references == current.owner_references
    }

    /// Returns whether this write did not change the Deployment, so that no watch event follows.
    pub(crate) fn is_without_effect(&self, effect: &Effect) -> bool {
        matches!(effect, Effect::Apply { version, .. } if *version == self.metadata.resource_version)
    }
}
