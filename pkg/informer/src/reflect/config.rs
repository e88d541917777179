//! The configuration of a list-and-watch loop.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::Client;
use portreeve_client::Outage;
use tokio::{sync::watch, time::Instant};

use crate::{StatusReporter, Watch, shared_watch::CrdSignal};

/// The configuration of one loop.
pub(crate) struct ReflectorConfig {
    /// The client for the apiserver.
    pub(crate) client: Client,
    /// The objects to list and watch.
    pub(crate) watch: Watch,
    /// The number of objects in one page of a list.
    pub(crate) page_size: u32,
    /// How long the watch may receive nothing before the loop reconnects.
    pub(crate) idle_timeout: Duration,
    /// The status that the loop updates.
    pub(crate) reporter: StatusReporter,
    /// Reports changes of the resource's CRD. If it was deleted and the resource is not served
    /// either, the loop treats its objects as deleted. After a 404 alone, it keeps them.
    pub(crate) crd_signal: CrdSignal,
    /// The versions that every reader decodes; unset if there is only one.
    pub(crate) versions: Arc<OnceLock<&'static [&'static str]>>,
    /// The current term. Each new term starts a new list (see [`crate::Cache::begin_term`]).
    pub(crate) terms: watch::Receiver<u64>,
    /// Counts the versions that decreased.
    pub(crate) version_decreases: watch::Sender<u64>,
    /// Each loop holds a clone, so it counts the loops.
    pub(crate) loops: Arc<()>,
    /// Its end ends the waits after failures that it has caused.
    pub(crate) outage: Outage,
}

impl ReflectorConfig {
    /// Records that the apiserver responded or sent data.
    pub(super) fn record_contact(&self) {
        if self.reporter.record_contact(Instant::now()) {
            tracing::info!(resource = %self.watch, "resumed watch");
        }
    }

    /// Records the version of a list or a line. One that decreases shows that etcd was restored
    /// from a backup, which the other watches may not notice for long.
    pub(super) fn record_version(&self, version: &str) {
        if self.reporter.record_version(version) {
            tracing::warn!(resource = %self.watch, version, "found a resourceVersion that decreased");
            self.version_decreases.send_modify(|count| *count += 1);
        }
    }
}
