//! The metrics of leader election, with client-go's names.

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

/// The metrics of all elections of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    status: IntGaugeVec,
    slow_paths: IntCounterVec,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already holds metrics with these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            status: IntGaugeVec::new(
                Opts::new(
                    "leader_election_master_status",
                    "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. \
                     'name' is the string used to identify the lease. Please make sure to group by name.",
                ),
                &["name"],
            )?,
            slow_paths: IntCounterVec::new(
                Opts::new(
                    "leader_election_slowpath_total",
                    "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the \
                     lease. Please make sure to group by name.",
                ),
                &["name"],
            )?,
        };
        registry.register(Box::new(metrics.status.clone()))?;
        registry.register(Box::new(metrics.slow_paths.clone()))?;
        Ok(metrics)
    }

    /// Returns the gauge that is 1 while the candidate for this Lease leads, and 0 otherwise.
    pub(crate) fn status(&self, lease: &str) -> IntGauge {
        self.status.with_label_values(&[lease])
    }

    /// Returns the counter of renewals that had to read the Lease first.
    pub(crate) fn slow_paths(&self, lease: &str) -> IntCounter {
        self.slow_paths.with_label_values(&[lease])
    }
}
