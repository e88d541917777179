//! The notes that a group leaves for its successors: annotations on the Lease of its election.
//!
//! The election reads, writes and watches the Lease anyway, so reading an annotation costs no
//! request. This module adds only the write.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use portreeve_api::{ObjectKey, Resource};
use portreeve_client::error_chain;
use portreeve_leader::{Election, LeaseSnapshot};
use portreeve_reconcile::{AnnotateError, LeaseAnnotations, Target};
use serde_json::json;
use tokio::sync::watch;

const LEASES: Resource = Resource::namespaced("coordination.k8s.io", "v1", "Lease", "leases");

/// One controller's view of the Lease of its group.
pub(crate) struct GroupLeaseAnnotations {
    election: Election,
    leases: Api<Lease>,
    program: &'static str,
    /// The current state of the Lease. The receiver remembers the state that the last call of
    /// `changed` saw.
    snapshot: Mutex<watch::Receiver<LeaseSnapshot>>,
}

impl GroupLeaseAnnotations {
    /// Creates the view. `client` must be behind the fence of `election`.
    pub(crate) fn new(election: &Election, client: Client, program: &'static str) -> Self {
        let (namespace, _) = election.key();
        Self {
            leases: Api::namespaced(client, namespace),
            snapshot: Mutex::new(election.lease_snapshots()),
            election: election.clone(),
            program,
        }
    }

    async fn patch(&self, annotation: &str, value: &str) -> Result<(), String> {
        let Some(uid) = self.snapshot.lock().borrow().uid.clone() else {
            return Err("the Lease does not exist or was not read yet".to_owned());
        };
        // The patch includes the uid, so the apiserver rejects it when another Lease has taken the
        // name.
        let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": {annotation: value}}}));
        let parameters = PatchParams {
            field_manager: Some(self.program.to_owned()),
            ..PatchParams::default()
        };
        let (_, name) = self.election.key();
        let written = self.leases.patch(name, &parameters, &patch).await;
        self.election
            .record_write(written.map_err(|error| error_chain(&error))?);
        Ok(())
    }
}

impl LeaseAnnotations for GroupLeaseAnnotations {
    fn target(&self) -> Option<Target> {
        let (namespace, name) = self.election.key();
        let snapshot = self.snapshot.lock().borrow().clone();
        Some(Target {
            resource: LEASES,
            key: ObjectKey::namespaced(namespace, name),
            uid: snapshot.uid?.into(),
            version: snapshot.version.into(),
        })
    }

    fn read(&self, annotation: &str) -> Option<String> {
        self.snapshot.lock().borrow().annotations.get(annotation).cloned()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let mut snapshot = self.snapshot.lock().clone();
            if snapshot.changed().await.is_err() {
                // The sender lives in the election.
                return std::future::pending().await;
            }
            *self.snapshot.lock() = snapshot;
        })
    }

    fn write<'a>(&'a self, annotation: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), AnnotateError>> {
        Box::pin(async move {
            let written = self.patch(annotation, value).await;
            written.map_err(|reason| AnnotateError {
                lease: self.election.lease().to_owned(),
                reason,
            })
        })
    }
}

/// Returns the Lease annotations of a group, or `None` when the group has no election.
pub(crate) fn of(
    election: Option<&Election>,
    client: &Client,
    program: &'static str,
) -> Option<Arc<dyn LeaseAnnotations>> {
    let lease_annotations = GroupLeaseAnnotations::new(election?, client.clone(), program);
    Some(Arc::new(lease_annotations))
}
