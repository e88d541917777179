//! The manager's own metrics.

use portreeve_metrics::Registry;
use prometheus::{IntGauge, IntGaugeVec, Opts, PullingGauge};
use tokio::runtime::Handle;

pub(crate) struct Metrics {
    running: IntGaugeVec,
}

impl Metrics {
    /// Registers the metrics. Must be called within the runtime whose tasks are counted.
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let running = IntGaugeVec::new(
            Opts::new(
                "running_managed_controllers",
                "Whether the controller runs (1) or waits for its Lease (0).",
            ),
            &["name", "manager"],
        )?;
        registry.register(Box::new(running.clone()))?;
        registry.register(Box::new(tasks(Handle::current())?))?;
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
