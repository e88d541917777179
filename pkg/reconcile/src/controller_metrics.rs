//! A controller's own counters and latencies, which it declares once and names in effects.

use std::{collections::BTreeMap, sync::Arc};

use portreeve_metrics::Registry;
use prometheus::{Histogram, HistogramOpts, IntCounter};

/// The buckets of latencies that Kubernetes does not measure, in seconds. From 1 s on, they are
/// those of `cronjob_controller_job_creation_skew_duration_seconds`.
pub const LATENCY_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0,
];

/// The metrics of one controller. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    counters: Arc<BTreeMap<&'static str, IntCounter>>,
    latencies: Arc<BTreeMap<&'static str, Histogram>>,
}

impl ControllerMetrics {
    pub(crate) fn add_counter(
        &mut self,
        registry: &Registry,
        name: &'static str,
        help: &str,
    ) -> Result<(), prometheus::Error> {
        let counter = IntCounter::new(name, help)?;
        registry.register(Box::new(counter.clone()))?;
        Arc::make_mut(&mut self.counters).insert(name, counter);
        Ok(())
    }

    pub(crate) fn add_latency(
        &mut self,
        registry: &Registry,
        name: &'static str,
        help: &str,
        buckets: &[f64],
    ) -> Result<(), prometheus::Error> {
        let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?;
        registry.register(Box::new(histogram.clone()))?;
        Arc::make_mut(&mut self.latencies).insert(name, histogram);
        Ok(())
    }

    pub(crate) fn count(&self, name: &str, by: u64) {
        match self.counters.get(name) {
            Some(counter) => counter.inc_by(by),
            None => undeclared(name),
        }
    }

    pub(crate) fn observe(&self, name: &str, seconds: f64) {
        match self.latencies.get(name) {
            Some(histogram) => histogram.observe(seconds),
            None => undeclared(name),
        }
    }
}

/// Reports a bug in the controller. The metric is ignored, and the reconcile continues.
fn undeclared(metric: &str) {
    tracing::error!(metric, "ignored a metric that the controller has not declared");
}
