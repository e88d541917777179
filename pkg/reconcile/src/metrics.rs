//! The metrics of controllers. Those of workers have the names that controller-runtime uses.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry};

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
                "Length of time per reconciliation per controller",
            )
            .buckets(prometheus::exponential_buckets(0.000_1, 2.5, 15)?),
            &["controller"],
        )?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self {
            total: counter(
                "controller_runtime_reconcile_total",
                "Total number of reconciliations per controller",
                &["controller", "result"],
            )?,
            errors: counter(
                "controller_runtime_reconcile_errors_total",
                "Total number of reconciliation errors per controller",
                &["controller"],
            )?,
            terminal_errors: counter(
                "controller_runtime_terminal_reconcile_errors_total",
                "Total number of terminal reconciliation errors per controller",
                &["controller"],
            )?,
            panics: counter(
                "controller_runtime_reconcile_panics_total",
                "Total number of reconciliation panics per controller",
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
                "Maximum number of concurrent reconciles per controller",
            )?,
            active: gauge(
                "controller_runtime_active_workers",
                "Number of currently used workers per controller",
            )?,
        })
    }
}
