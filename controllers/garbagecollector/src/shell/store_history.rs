//! Detects that etcd was restored from a backup, by resourceVersions that decrease.
//!
//! Lists, reads and the Lease show it. A watch does not: it resumes at a version in the future, and
//! the apiserver sends nothing until that version is reached. So whenever a watch resumes, one
//! small list shows the current version of its resource. If it is older than what was seen before,
//! the graph drops the proofs that rest on the same store, and the resources of that store are
//! listed again.

use std::{mem, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{Graph, Monitor};
use portreeve_reconcile::{GroupLease, Shutdown};
use tokio::sync::{Notify, watch};

use super::{CollectorContext, requests};

/// How long to wait after failed requests.
const PAUSE: Duration = Duration::from_secs(1);

/// The watches that have resumed, and the resources to list again.
pub(super) struct StoreHistory {
    /// The number of times that the version of the group's Lease was seen to decrease.
    lease: Option<watch::Receiver<u64>>,
    resumed: Mutex<Vec<(Monitor, Resource)>>,
    has_resumed: Notify,
    went_back: Mutex<Vec<Option<Monitor>>>,
    has_gone_back: Notify,
}

impl StoreHistory {
    pub(super) fn new(lease: Option<&GroupLease>) -> Self {
        Self {
            lease: lease.map(|lease| lease.version_decreases.clone()),
            resumed: Mutex::default(),
            has_resumed: Notify::new(),
            went_back: Mutex::default(),
            has_gone_back: Notify::new(),
        }
    }

    /// Requests the current version of a resource whose watch has resumed.
    pub(super) fn resumed(&self, monitor: Monitor, resource: &Resource) {
        let mut resumed = self.resumed.lock();
        if !resumed.iter().any(|(known, _)| *known == monitor) {
            resumed.push((monitor, resource.clone()));
        }
        self.has_resumed.notify_one();
    }

    /// Forgets a monitor that was removed.
    pub(super) fn forget(&self, monitor: Monitor) {
        self.resumed.lock().retain(|(known, _)| *known != monitor);
    }

    /// Waits until versions have decreased. Returns the resources to list again: that of each
    /// monitor, or those of the main store.
    pub(super) async fn went_back(&self) -> Vec<Option<Monitor>> {
        loop {
            let went_back = mem::take(&mut *self.went_back.lock());
            if !went_back.is_empty() {
                return went_back;
            }
            self.has_gone_back.notified().await;
        }
    }
}

/// Requests the versions of resources whose watches have resumed, until `stop` is requested. It
/// sends one request at a time, so that all of them use one connection.
pub(super) async fn run(ctx: Arc<CollectorContext>, stop: Shutdown) {
    let checks = async {
        loop {
            let resumed = mem::take(&mut *ctx.store_history.resumed.lock());
            if resumed.is_empty() {
                ctx.store_history.has_resumed.notified().await;
                continue;
            }
            let mut failed = Vec::new();
            for (monitor, resource) in resumed {
                if !ctx.check_version(monitor, &resource).await {
                    failed.push((monitor, resource));
                }
            }
            if !failed.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
            for (monitor, resource) in failed {
                ctx.store_history.resumed(monitor, &resource);
            }
        }
    };
    let lease = async {
        // Without a Lease, or once its election has ended, the lists and reads remain.
        if let Some(mut decreases) = ctx.store_history.lease.clone() {
            while decreases.changed().await.is_ok() {
                ctx.versions_decreased(None, "the Lease");
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = checks => {}
        () = lease => {}
        () = stop.requested() => {}
    }
}

impl CollectorContext {
    /// Compares the current version of a resource with those seen before. Returns `false` if the
    /// request must be repeated.
    async fn check_version(&self, monitor: Monitor, resource: &Resource) -> bool {
        let known = self.graph.lock().latest_version(monitor);
        match requests::current_version(&self.client, resource).await {
            Ok(version) if Graph::has_decreased(known, &version) => {
                self.versions_decreased(Some(monitor), &resource.to_string());
                true
            }
            Ok(_) => {
                self.graph.lock().confirm_versions(monitor);
                true
            }
            // The watch fails for the same reason, and will resume later.
            Err(error) => error.concerns_resource(),
        }
    }

    /// Drops the proofs that rest on the store of a monitor's resource, or on the main store, and
    /// lists the resources of that store again.
    pub(super) fn versions_decreased(&self, monitor: Option<Monitor>, source: &str) {
        let is_outdated = |monitor| self.graph.lock().is_outdated(monitor);
        if monitor.is_some_and(is_outdated) {
            // The resource has not been listed again since the last time.
            return;
        }
        let is_main = self.change(|graph, follow_ups| graph.go_back(monitor, follow_ups));
        self.relist(monitor.filter(|_| !is_main), source);
    }

    /// Lists the resource of this monitor again, or all resources of the main store.
    pub(super) fn relist(&self, monitor: Option<Monitor>, source: &str) {
        tracing::warn!(
            source,
            "resourceVersions have decreased, as after a restore of etcd; dropped the proofs that owners are absent, listing again"
        );
        self.metrics.restores.inc();
        self.store_history.went_back.lock().push(monitor);
        self.store_history.has_gone_back.notify_one();
    }
}
