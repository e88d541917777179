//! Pods, and the claims that they use.
//!
//! Architecture Invariant: pure.

use std::sync::Arc;

use jiff::Timestamp;
use portreeve_api::{Metadata, ObjectKey, OwnerReference, Resource, null_as_default};
use portreeve_informer::Projection;
use serde::Deserialize;

pub(crate) const PODS: Resource = Resource::namespaced("", "v1", "Pod", "pods");
/// Selects Pods with a node. No kubelet starts a Pod whose claim is being deleted, so only a Pod
/// that was scheduled before can use it.
pub(crate) const SCHEDULED: &str = "spec.nodeName!=";

/// The fields of a Pod that the informer stores.
#[derive(Debug, Deserialize)]
#[serde(from = "Fields")]
pub(crate) struct CachedPod {
    metadata: Metadata,
    /// Whether the kubelet has ended the Pod, or it was deleted by force.
    is_shut_down: bool,
    volumes: Box<[ClaimVolume]>,
}

/// A volume that is a claim.
#[derive(Debug)]
enum ClaimVolume {
    Named(Box<str>),
    /// The claim belongs to the Pod and has the name of the Pod and of this volume.
    Ephemeral(Box<str>),
}

#[derive(Deserialize)]
struct Fields {
    metadata: PodMetadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMetadata {
    #[serde(default)]
    namespace: Option<Arc<str>>,
    name: Arc<str>,
    uid: Arc<str>,
    #[serde(default)]
    resource_version: Arc<str>,
    #[serde(default)]
    deletion_timestamp: Option<Timestamp>,
    #[serde(default)]
    deletion_grace_period_seconds: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "null_as_default")]
    volumes: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: Box<str>,
    #[serde(default)]
    persistent_volume_claim: Option<ClaimSource>,
    #[serde(default)]
    ephemeral: Option<EphemeralSource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSource {
    claim_name: Box<str>,
}

#[derive(Deserialize)]
struct EphemeralSource {}

impl From<Fields> for CachedPod {
    fn from(Fields { metadata, spec }: Fields) -> Self {
        let volumes = spec.volumes.into_iter().filter_map(|volume| {
            let Volume {
                name,
                persistent_volume_claim: claim,
                ephemeral,
            } = volume;
            let ephemeral = ephemeral.map(|_| ClaimVolume::Ephemeral(name));
            claim.map(|claim| ClaimVolume::Named(claim.claim_name)).or(ephemeral)
        });
        Self {
            is_shut_down: metadata.deletion_timestamp.is_some() && metadata.deletion_grace_period_seconds == Some(0),
            volumes: volumes.collect(),
            metadata: Metadata {
                namespace: metadata.namespace,
                name: metadata.name,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                deletion_timestamp: metadata.deletion_timestamp,
                ..Metadata::default()
            },
        }
    }
}

impl Projection for CachedPod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl CachedPod {
    /// Returns the keys of the claims that the Pod names.
    pub(crate) fn claims(&self) -> impl Iterator<Item = ObjectKey> {
        self.volumes
            .iter()
            .map(|volume| self.metadata.key().with_name(self.claim(volume)))
    }

    fn claim(&self, volume: &ClaimVolume) -> String {
        match volume {
            ClaimVolume::Named(claim) => claim.to_string(),
            ClaimVolume::Ephemeral(name) => format!("{}-{name}", self.metadata.name),
        }
    }

    /// Returns whether the Pod, which has a node, uses the claim of this name in its namespace. The
    /// claim of an ephemeral volume has the Pod as its controller, and a Pod that is shut down no
    /// longer uses it: the Pod may wait for the end of the claim.
    pub(crate) fn uses(&self, name: &str, controller: Option<&OwnerReference>) -> bool {
        let is_own = controller.is_some_and(|controller| *controller.uid == *self.metadata.uid);
        self.volumes.iter().any(|volume| {
            let may_use = match volume {
                ClaimVolume::Named(_) => true,
                ClaimVolume::Ephemeral(_) => is_own && !self.is_shut_down,
            };
            may_use && self.claim(volume) == name
        })
    }
}
