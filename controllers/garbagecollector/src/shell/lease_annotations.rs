//! The state that the collector leaves for its successors: annotations on the Lease of its group.

use kube::Client;
use portreeve_api::ObjectKey;
use portreeve_reconcile::{GroupLease, Target};
use serde_json::json;

use super::requests;

/// State that survives the process: annotations on the Lease of the collector's group. Standbys can
/// read it too. Deleting the Lease deletes them.
#[derive(Clone)]
pub struct LeaseAnnotations {
    client: Client,
    lease: GroupLease,
}

/// An annotation could not be set. Retrying is safe.
#[derive(Debug, thiserror::Error)]
pub enum AnnotateError {
    /// The Lease is unknown.
    #[error("failed to annotate Lease {lease}: the Lease does not exist or has not been observed yet")]
    NoLease {
        /// The namespace and the name of the Lease.
        lease: ObjectKey,
    },
    /// The write failed.
    #[error("failed to annotate Lease {lease}: {reason}")]
    Write {
        /// The namespace and the name of the Lease.
        lease: ObjectKey,
        /// The apiserver's answer, or why there is none.
        reason: String,
    },
}

impl LeaseAnnotations {
    /// Creates the annotations of a Lease. `client` must be behind the group's fence.
    pub fn new(client: Client, lease: GroupLease) -> Self {
        Self { client, lease }
    }

    /// Returns the Lease as the target of events, or `None` if it does not exist or has not been
    /// observed yet.
    pub fn target(&self) -> Option<Target> {
        self.lease.target()
    }

    /// Returns the last known value of the annotation, from a read, a write or the watch. While the
    /// collector runs, this is never older than the value when this process became the leader.
    pub fn read(&self, annotation: &str) -> Option<String> {
        let metadata = &self.lease.snapshots.borrow().metadata;
        metadata.annotations.as_ref()?.get(annotation).cloned()
    }

    /// Waits until any annotation may have changed since the last wait, or since the collector was
    /// built. It may return immediately, and also after one's own [`LeaseAnnotations::write`].
    pub async fn changed(&mut self) {
        if self.lease.snapshots.changed().await.is_err() {
            // The sender lives in the election.
            std::future::pending::<()>().await;
        }
    }

    /// Sets the annotation, or removes it if `value` is `None`. The write passes the group's fence.
    /// When it completes, [`LeaseAnnotations::read`] returns the new value. Avoid frequent writes:
    /// every replica receives each one.
    ///
    /// # Errors
    ///
    /// Returns an error when the Lease is unknown or the write fails.
    pub async fn write(&self, annotation: &str, value: Option<&str>) -> Result<(), AnnotateError> {
        let Some(Target { resource, key, uid, .. }) = self.target() else {
            return Err(AnnotateError::NoLease {
                lease: self.lease.key.clone(),
            });
        };
        // The patch includes the uid, so the apiserver rejects it when another Lease has taken the
        // name.
        let patch = json!({"metadata": {"uid": &*uid, "annotations": {annotation: value}}});
        let written = requests::merge_patch(&self.client, &resource, &key, &patch).await;
        let lease = written.map_err(|error| AnnotateError::Write {
            lease: self.lease.key.clone(),
            reason: error.to_string(),
        })?;
        (self.lease.record_write)(lease);
        Ok(())
    }
}
