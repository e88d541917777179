//! The metrics of leader election. Those that client-go has too have its names.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_metrics::Registry;
use prometheus::{
    GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

/// The metrics of all elections of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    status: IntGaugeVec,
    slow_paths: IntCounterVec,
    failures: IntCounterVec,
    renewals: RenewalAges,
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
                    "Whether this process holds the Lease (1) or not (0).",
                ),
                &["name"],
            )?,
            slow_paths: IntCounterVec::new(
                Opts::new(
                    "leader_election_slowpath_total",
                    "Number of renewals that had to read the Lease first.",
                ),
                &["name"],
            )?,
            failures: IntCounterVec::new(
                Opts::new(
                    "portreeve_leader_election_failures_total",
                    "Number of attempts to acquire or renew the Lease that failed with an error. An attempt that finds \
                     another holder has not failed.",
                ),
                &["name", "operation"],
            )?,
            renewals: RenewalAges::new()?,
        };
        registry.register(Box::new(metrics.status.clone()))?;
        registry.register(Box::new(metrics.slow_paths.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        registry.register(Box::new(metrics.renewals.clone()))?;
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

    /// Returns the counters of failed attempts.
    pub(crate) fn failures(&self, lease: &str) -> FailureCounters {
        let counter = |operation| self.failures.with_label_values(&[lease, operation]);
        FailureCounters {
            acquire: counter("acquire"),
            renew: counter("renew"),
        }
    }

    /// Calls `age` at every scrape for the time since the last renewal of the Lease, until `owner`
    /// no longer exists.
    pub(crate) fn watch_renewals<T: Send + Sync + 'static>(
        &self,
        lease: &str,
        owner: &Arc<T>,
        age: fn(&T) -> Option<Duration>,
    ) {
        let owner: Weak<T> = Arc::downgrade(owner);
        let observe = Box::new(move || Some(age(&*owner.upgrade()?)));
        self.renewals.observed.lock().push((lease.to_owned(), observe));
    }
}

/// The failed attempts of one candidate.
pub(crate) struct FailureCounters {
    pub(crate) acquire: IntCounter,
    pub(crate) renew: IntCounter,
}

/// Returns the age of the last renewal, which only a leader has. The outer `None` means that the
/// election no longer exists.
type ObserveAge = Box<dyn Fn() -> Option<Option<Duration>> + Send + Sync>;

/// Computes the ages of the last renewals at each scrape.
#[derive(Clone)]
struct RenewalAges {
    ages: GaugeVec,
    /// By Lease. Also locked during a scrape, so that concurrent scrapes do not reset each other's
    /// gauges.
    observed: Arc<Mutex<Vec<(String, ObserveAge)>>>,
}

impl RenewalAges {
    fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            ages: GaugeVec::new(
                Opts::new(
                    "portreeve_leader_election_last_renewal_age_seconds",
                    "Seconds since the start of the last request that acquired or renewed the Lease. Only the leader \
                     has this series.",
                ),
                &["name"],
            )?,
            observed: Arc::default(),
        })
    }
}

impl Collector for RenewalAges {
    fn desc(&self) -> Vec<&Desc> {
        self.ages.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut observed = self.observed.lock();
        self.ages.reset();
        observed.retain(|(lease, observe)| {
            let Some(age) = observe() else { return false };
            if let Some(age) = age {
                self.ages.with_label_values(&[lease]).set(age.as_secs_f64());
            }
            true
        });
        self.ages.collect()
    }
}

impl fmt::Debug for RenewalAges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewalAges").finish_non_exhaustive()
    }
}
