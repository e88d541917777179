//! The Lease of a group of controllers.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use portreeve_api::{ObjectKey, Resource};
use tokio::sync::watch;

use crate::Target;

const LEASES: Resource = Resource::namespaced("coordination.k8s.io", "v1", "Lease", "leases");

/// The Lease of a group of controllers, as its election knows it. The election reads and watches
/// the Lease anyway, so observing it costs no request.
///
/// A controller may change the metadata of the Lease, through the client in its
/// [`Context`](crate::Context), which is behind the group's fence.
#[derive(Clone)]
pub struct GroupLease {
    /// The namespace and the name.
    pub key: ObjectKey,
    /// The last known state, from a read, a write or the watch. It has no UID if the Lease does not
    /// exist or has not been observed yet. While a controller runs, it is never older than the
    /// state at the time this process became the leader. Renewals do not notify receivers.
    pub snapshots: watch::Receiver<Lease>,
    /// The number of times that the resourceVersion of the Lease was seen to decrease, as after a
    /// restore of etcd from a backup.
    pub version_decreases: watch::Receiver<u64>,
    /// Records the response to a write. Call it after each one, so that the next renewal does not
    /// conflict with it.
    pub record_write: Arc<dyn Fn(Lease) + Send + Sync>,
}

impl GroupLease {
    /// Returns the Lease as the target of events, or `None` if it does not exist or has not been
    /// observed yet.
    pub fn target(&self) -> Option<Target> {
        let metadata = &self.snapshots.borrow().metadata;
        Some(Target {
            resource: LEASES,
            key: self.key.clone(),
            uid: metadata.uid.as_deref()?.into(),
            version: metadata.resource_version.as_deref().unwrap_or_default().into(),
        })
    }
}
