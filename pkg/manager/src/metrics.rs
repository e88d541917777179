//! The manager's own metrics, and the metrics of the informers, which are read at each scrape.

use parking_lot::Mutex;
use portreeve_informer::Factory;
use prometheus::{
    IntGauge, IntGaugeVec, Opts, PullingGauge, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::runtime::Handle;

pub(crate) struct Metrics {
    running: IntGaugeVec,
}

impl Metrics {
    /// Registers the metrics. Must be called within the runtime whose tasks are counted.
    pub(crate) fn register(registry: &Registry, informers: Factory) -> Result<Self, prometheus::Error> {
        let running = IntGaugeVec::new(
            Opts::new(
                "running_managed_controllers",
                "Indicates where instances of a controller are currently running",
            ),
            &["name", "manager"],
        )?;
        registry.register(Box::new(running.clone()))?;
        registry.register(Box::new(Informers::new(informers)?))?;
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

/// Reads the reports of the factory at each scrape. A gauge that is set elsewhere would be outdated
/// between updates.
struct Informers {
    factory: Factory,
    synced: IntGaugeVec,
    objects: IntGaugeVec,
    undecodable: IntGaugeVec,
    /// Serializes scrapes: a concurrent scrape would read gauges that were just reset.
    scraping: Mutex<()>,
}

impl Informers {
    fn new(factory: Factory) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["resource"]);
        Ok(Self {
            factory,
            synced: gauge(
                "portreeve_informer_synced",
                "Whether the watch has seen a complete list (1) or not yet (0).",
            )?,
            objects: gauge(
                "portreeve_informer_objects",
                "Number of objects in the store of the watch.",
            )?,
            scraping: Mutex::new(()),
            undecodable: gauge(
                "portreeve_informer_undecodable_objects",
                "Number of objects that exist and cannot be decoded.",
            )?,
        })
    }
}

impl Collector for Informers {
    fn desc(&self) -> Vec<&Desc> {
        [&self.synced, &self.objects, &self.undecodable]
            .into_iter()
            .flat_map(Collector::desc)
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _alone = self.scraping.lock();
        let gauges = [&self.synced, &self.objects, &self.undecodable];
        for gauge in gauges {
            gauge.reset();
        }
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for report in self.factory.reports() {
            let name = [report.name.as_str()];
            self.synced.with_label_values(&name).set(report.synced.into());
            self.objects.with_label_values(&name).set(count(report.objects));
            self.undecodable
                .with_label_values(&name)
                .set(count(report.undecodable.len()));
        }
        gauges.into_iter().flat_map(Collector::collect).collect()
    }
}
