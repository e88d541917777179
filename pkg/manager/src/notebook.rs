//! What a group notes for its successors: annotations of the Lease that it is elected by.
//!
//! The election reads, writes and watches the Lease anyway, so to read a note costs nothing; here is only how one is written.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use portreeve_api::{ObjectKey, Resource};
use portreeve_client::chain;
use portreeve_leader::{Election, Noted};
use portreeve_reconcile::{NotWritten, Notebook, Target};
use serde_json::json;
use tokio::sync::watch;

const LEASES: Resource = Resource::namespaced("coordination.k8s.io", "v1", "Lease", "leases");

/// One controller's view of its group's Lease.
pub(crate) struct LeaseNotebook {
    election: Election,
    leases: Api<Lease>,
    program: &'static str,
    /// What is known of the Lease; marks what was known at the last call of `changed`.
    noted: Mutex<watch::Receiver<Noted>>,
}

impl LeaseNotebook {
    /// `client` is behind the fence of that election.
    pub(crate) fn new(election: &Election, client: Client, program: &'static str) -> Self {
        let (namespace, _) = election.key();
        Self {
            leases: Api::namespaced(client, namespace),
            noted: Mutex::new(election.notes()),
            election: election.clone(),
            program,
        }
    }

    async fn patch(&self, annotation: &str, value: &str) -> Result<(), String> {
        let Some(uid) = self.noted.lock().borrow().uid.clone() else {
            return Err("it is not there, or was not seen yet".to_owned());
        };
        // Of another Lease of that name nothing is known: the apiserver refuses to change a UID.
        let patch = Patch::Merge(json!({"metadata": {"uid": uid, "annotations": {annotation: value}}}));
        let parameters = PatchParams {
            field_manager: Some(self.program.to_owned()),
            ..PatchParams::default()
        };
        let (_, name) = self.election.key();
        let written = self.leases.patch(name, &parameters, &patch).await;
        self.election.heard(written.map_err(|error| chain(&error))?);
        Ok(())
    }
}

impl Notebook for LeaseNotebook {
    fn target(&self) -> Option<Target> {
        let (namespace, name) = self.election.key();
        let noted = self.noted.lock().borrow().clone();
        Some(Target {
            resource: LEASES,
            key: ObjectKey::namespaced(namespace, name),
            uid: noted.uid?.into(),
            version: noted.version.into(),
        })
    }

    fn read(&self, annotation: &str) -> Option<String> {
        self.noted.lock().borrow().annotations.get(annotation).cloned()
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let mut noted = self.noted.lock().clone();
            if noted.changed().await.is_err() {
                // The sender lives in the election.
                return std::future::pending().await;
            }
            *self.noted.lock() = noted;
        })
    }

    fn write<'a>(&'a self, annotation: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), NotWritten>> {
        Box::pin(async move {
            let written = self.patch(annotation, value).await;
            written.map_err(|reason| NotWritten {
                lease: self.election.lease().to_owned(),
                reason,
            })
        })
    }
}

/// The notebook of a group that has an election.
pub(crate) fn of(election: Option<&Election>, client: &Client, program: &'static str) -> Option<Arc<dyn Notebook>> {
    let notebook = LeaseNotebook::new(election?, client.clone(), program);
    Some(Arc::new(notebook))
}
