//! The settings of the manager, and what it runs.

use std::time::Duration;

use portreeve_informer::InformerConfig;
use portreeve_leader::{Election, Heartbeat};
use portreeve_reconcile::Descriptor;

/// The settings of the manager.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program's name: the field manager of CRDs and a label of metrics.
    pub program: &'static str,
    /// The name of this replica in events.
    pub instance: String,
    /// Whether to install the controllers' CRDs.
    pub install_crds: bool,
    /// Whether to log plans and write nothing.
    pub dry_run: bool,
    /// The pause between the starts of two controllers: a random time between once and twice this
    /// value.
    pub start_interval: Duration,
    /// How long running reconciles may take to finish. Zero means no limit.
    pub shutdown_timeout: Duration,
    /// How long an item may be processed without progress before `/livez` fails. Zero means no
    /// limit. A call to the apiserver is one step of progress, so the timeout must be longer than
    /// the longest call.
    pub controller_stuck_timeout: Duration,
    /// How long a queue with due items may make no progress before `/livez` fails. Zero means no
    /// limit.
    pub queue_stuck_timeout: Duration,
    /// The maximum rate of each controller's retries that fail again. Zero means no limit.
    pub retry_qps: f32,
    /// The number of retries that may exceed that rate in a burst.
    pub retry_burst: u32,
    /// The timeouts and intervals of informers.
    pub informer_config: InformerConfig,
    /// Beats as long as the manager runs, and so shows that its runtime runs tasks.
    pub heartbeat: Heartbeat,
}

/// Controllers that always run in the same process at the same time.
#[derive(Clone)]
pub struct ControllerGroup {
    /// The controllers.
    pub controllers: Vec<Descriptor>,
    /// The election that decides when they run. `None` means always.
    pub election: Option<Election>,
}
