//! The manager's own metrics.

use parking_lot::Mutex;
use portreeve_metrics::Registry;
use prometheus::{
    IntGauge, IntGaugeVec, Opts, PullingGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::runtime::Handle;

use crate::definitions::InstallProgress;

pub(crate) struct Metrics {
    running: IntGaugeVec,
}

impl Metrics {
    /// Registers the metrics. Must be called within the runtime whose tasks are counted.
    pub(crate) fn register(registry: &Registry, installing: InstallProgress) -> Result<Self, prometheus::Error> {
        let running = IntGaugeVec::new(
            Opts::new(
                "running_managed_controllers",
                "Whether the controller runs (1), or waits for its Lease or its CustomResourceDefinitions (0).",
            ),
            &["name", "manager"],
        )?;
        registry.register(Box::new(running.clone()))?;
        registry.register(Box::new(tasks(Handle::current())?))?;
        registry.register(Box::new(BlockedDefinitions::new(installing)?))?;
        Ok(Self { running })
    }

    pub(crate) fn running(&self, controller: &str, manager: &str) -> IntGauge {
        self.running.with_label_values(&[controller, manager])
    }
}

/// Counts the live tasks, which reveals task leaks. The tasks of the elections' own runtime are not
/// included.
fn tasks(runtime: Handle) -> Result<PullingGauge, prometheus::Error> {
    let alive = move || {
        u32::try_from(runtime.metrics().num_alive_tasks())
            .unwrap_or(u32::MAX)
            .into()
    };
    PullingGauge::new(
        "portreeve_tasks",
        "Number of live tasks in the main runtime.",
        Box::new(alive),
    )
}

/// The CRDs that `--install-crds` cannot install.
struct BlockedDefinitions {
    progress: InstallProgress,
    gauge: IntGaugeVec,
    /// Serializes scrapes: a concurrent scrape would read a gauge that was just reset.
    scraping: Mutex<()>,
}

impl BlockedDefinitions {
    fn new(progress: InstallProgress) -> Result<Self, prometheus::Error> {
        let gauge = IntGaugeVec::new(
            Opts::new(
                "portreeve_crd_install_blocked",
                "Always 1: --install-crds cannot install this CustomResourceDefinition, and its controllers wait. By \
                 reason: not_ours (another program has one of this name), terminating, not_established, failed (requests \
                 fail).",
            ),
            &["definition", "reason"],
        )?;
        Ok(Self {
            progress,
            gauge,
            scraping: Mutex::new(()),
        })
    }
}

impl Collector for BlockedDefinitions {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _scraping = self.scraping.lock();
        self.gauge.reset();
        for (definition, (obstacle, _)) in self.progress.blocked() {
            self.gauge.with_label_values(&[&*definition, obstacle.label()]).set(1);
        }
        self.gauge.collect()
    }
}
