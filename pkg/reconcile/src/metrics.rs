//! The metrics of controllers. Those of workers have the names that controller-runtime uses.

use portreeve_metrics::Registry;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts};

/// controller-runtime's buckets of the durations of reconciles.
const SECONDS_BUCKETS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5,
    1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
];

/// The metrics of all controllers. One instance per process.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) total: IntCounterVec,
    pub(crate) errors: IntCounterVec,
    pub(crate) terminal_errors: IntCounterVec,
    pub(crate) panics: IntCounterVec,
    pub(crate) fenced_writes: IntCounterVec,
    pub(crate) seconds: HistogramVec,
    pub(crate) workers: IntGaugeVec,
    pub(crate) active: IntGaugeVec,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already holds metrics with these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str| -> Result<IntGaugeVec, prometheus::Error> {
            let metric = IntGaugeVec::new(Opts::new(name, help), &["controller"])?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "controller_runtime_reconcile_time_seconds",
                "Duration of reconciles in seconds.",
            )
            .buckets(SECONDS_BUCKETS.to_vec()),
            &["controller"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self {
            total: counter(
                "controller_runtime_reconcile_total",
                "Number of reconciles, by result: success, error, requeue or requeue_after.",
                &["controller", "result"],
            )?,
            errors: counter(
                "controller_runtime_reconcile_errors_total",
                "Number of reconciles that failed.",
                &["controller"],
            )?,
            terminal_errors: counter(
                "controller_runtime_terminal_reconcile_errors_total",
                "Number of reconciles whose request the apiserver rejected for a reason that needs manual intervention.",
                &["controller"],
            )?,
            panics: counter(
                "controller_runtime_reconcile_panics_total",
                "Number of reconciles that panicked.",
                &["controller"],
            )?,
            fenced_writes: counter(
                "portreeve_fenced_writes_total",
                "Number of writes that a fence rejected: this replica's own before they were sent (local), or the \
                 apiserver's although this replica held the Lease (apiserver).",
                &["controller", "fence"],
            )?,
            seconds,
            workers: gauge(
                "controller_runtime_max_concurrent_reconciles",
                "Maximum number of concurrent reconciles; 0 until the controller runs.",
            )?,
            active: gauge(
                "controller_runtime_active_workers",
                "Number of reconciles that run now.",
            )?,
        })
    }

    /// Creates the series of a controller, because a rate needs them before the first event.
    pub(crate) fn start_at_zero(&self, controller: &str, results: &[&str]) {
        for result in results {
            self.total.with_label_values(&[controller, result]);
        }
        for counter in [&self.errors, &self.terminal_errors, &self.panics] {
            counter.with_label_values(&[controller]);
        }
        self.active.with_label_values(&[controller]);
        self.workers.with_label_values(&[controller]);
    }
}
