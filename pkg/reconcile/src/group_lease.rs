//! The Lease of a group of controllers.

use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use portreeve_api::ObjectKey;
use tokio::sync::watch;

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
    /// Records the response to a write. Call it after each one, so that the next renewal does not
    /// conflict with it.
    pub record_write: Arc<dyn Fn(Lease) + Send + Sync>,
}
