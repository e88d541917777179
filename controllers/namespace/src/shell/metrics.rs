//! The controller's metrics, which are computed when they are scraped.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use portreeve_metrics::Registry;
use prometheus::{
    Gauge, IntGauge,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::NamespaceContext;

struct NamespaceCollector {
    ctx: Weak<NamespaceContext>,
    terminating: IntGauge,
    stuck: IntGauge,
    oldest: Gauge,
    /// Serializes scrapes: another scrape would set the gauges that this one reads.
    scraping: Mutex<()>,
}

/// Registers the metrics.
pub(super) fn register(ctx: &Arc<NamespaceContext>, registry: &Registry) -> Result<(), prometheus::Error> {
    registry.register(Box::new(NamespaceCollector {
        ctx: Arc::downgrade(ctx),
        terminating: IntGauge::new(
            "namespace_controller_terminating_namespaces",
            "Number of namespaces that are being deleted.",
        )?,
        stuck: IntGauge::new(
            "namespace_controller_stuck_namespaces",
            "Number of namespaces that have been terminating for longer than --namespace-stuck-after, since this replica first saw it.",
        )?,
        oldest: Gauge::new(
            "namespace_controller_oldest_terminating_seconds",
            "Seconds for which this replica has seen the oldest namespace that is being deleted.",
        )?,
        scraping: Mutex::new(()),
    }))
}

impl NamespaceCollector {
    fn all(&self) -> [&dyn Collector; 3] {
        [&self.terminating, &self.stuck, &self.oldest]
    }
}

impl Collector for NamespaceCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all().iter().flat_map(|metric| metric.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _alone = self.scraping.lock();
        let Some(ctx) = self.ctx.upgrade() else {
            return Vec::new();
        };
        let (count, stuck, oldest) = ctx.tracked.ages(ctx.settings.stuck_after);
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.terminating.set(number(count));
        self.stuck.set(number(stuck));
        self.oldest.set(oldest.map_or(0.0, |(age, _)| age.as_secs_f64()));
        self.all().iter().flat_map(|metric| metric.collect()).collect()
    }
}
