//! The `workqueue_*` metrics, with the names, labels and buckets of Kubernetes' components.
//!
//! Depth, held retries, tokens, unfinished work and the longest run are computed when the registry
//! is read. client-go's ticker writes them every 500 ms instead. So values are never older than the
//! scrape, a run of 400 ms is visible, and there is no task to stop.
//!
//! Architecture Invariant: no global registry, and no strong reference to a queue. A queue's gauges
//! end with it, and its counters stay.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use portreeve_metrics::Registry;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
};

use crate::core::{QueueSnapshot, Tally};

/// The metrics of all queues of a process, in the registry of [`Metrics::register`]. Clones share
/// their state.
#[derive(Clone)]
pub struct Metrics(Arc<Families>);

/// Observes a queue and the tokens of its retry budget, which may have no limit. Returns `None` if
/// the queue no longer exists.
type Observe = Box<dyn Fn() -> Option<(QueueSnapshot, Option<i64>)> + Send + Sync>;

struct Families {
    adds: IntCounterVec,
    retries: IntCounterVec,
    queue_durations: HistogramVec,
    work_durations: HistogramVec,
    depth: IntGaugeVec,
    held: IntGaugeVec,
    tokens: IntGaugeVec,
    unfinished: GaugeVec,
    longest: GaugeVec,
    /// Also locked during a scrape, so that concurrent scrapes do not reset each other's gauges.
    queues: Mutex<Vec<(&'static str, Observe)>>,
}

impl Metrics {
    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already holds metrics with these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let label = ["name"];
        // 10 ns to 10 s, as in Kubernetes; controller-runtime's buckets extend to 1000 s.
        let buckets = exponential_buckets(10e-9, 10.0, 10)?;
        let histogram = |name: &str, help: &str| {
            let options = HistogramOpts::new(name, help).buckets(buckets.clone());
            HistogramVec::new(options, &label)
        };
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &label);
        let gauge = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &label);
        let seconds = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &label);
        let families = Families {
            adds: counter("workqueue_adds_total", "Number of keys that became ready.")?,
            retries: counter(
                "workqueue_retries_total",
                "Number of keys that were scheduled for later, by backoff or for a requested time.",
            )?,
            queue_durations: histogram(
                "workqueue_queue_duration_seconds",
                "Seconds for which keys were due before a worker took them.",
            )?,
            work_durations: histogram(
                "workqueue_work_duration_seconds",
                "Seconds for which workers held keys.",
            )?,
            depth: gauge("workqueue_depth", "Number of keys that are due and not yet taken.")?,
            held: gauge(
                "workqueue_held_retries",
                "Number of failed keys whose backoff has passed and that wait for the retry budget.",
            )?,
            tokens: gauge(
                "portreeve_retry_budget_tokens",
                "Number of retries that the retry budget permits now. Negative after failed retries that sent \
                 several requests. No series if --retry-qps is 0.",
            )?,
            unfinished: seconds(
                "workqueue_unfinished_work_seconds",
                "Total seconds for which workers have held their current keys. It grows steadily while a worker is \
                 stuck.",
            )?,
            longest: seconds(
                "workqueue_longest_running_processor_seconds",
                "Seconds for which the longest-running worker has held its current key.",
            )?,
            queues: Mutex::default(),
        };
        let metrics = Self(Arc::new(families));
        registry.register(Box::new(metrics.clone()))?;
        Ok(metrics)
    }

    /// Returns the series of one queue. New series start at zero.
    pub(crate) fn series(&self, name: &'static str) -> Series {
        let Families {
            adds,
            retries,
            queue_durations,
            work_durations,
            ..
        } = &*self.0;
        Series {
            adds: adds.with_label_values(&[name]),
            retries: retries.with_label_values(&[name]),
            queue_durations: queue_durations.with_label_values(&[name]),
            work_durations: work_durations.with_label_values(&[name]),
        }
    }

    /// Returns the series of work that is done immediately and never waits in a queue. It is
    /// counted under `name`, so that dashboards for that queue show it.
    pub fn direct(&self, name: &'static str) -> UnqueuedWork {
        UnqueuedWork(self.series(name))
    }

    /// Calls `observe` at every scrape until it returns `None`.
    pub(crate) fn watch(&self, name: &'static str, observe: Observe) {
        let mut queues = self.0.queues.lock();
        queues.retain(|(_, observe)| observe().is_some());
        queues.push((name, observe));
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Families {
    fn collectors(&self) -> [&dyn Collector; 9] {
        let Self {
            adds,
            retries,
            queue_durations,
            work_durations,
            depth,
            held,
            tokens,
            unfinished,
            longest,
            queues: _,
        } = self;
        [
            adds,
            retries,
            queue_durations,
            work_durations,
            depth,
            held,
            tokens,
            unfinished,
            longest,
        ]
    }

    /// Observes the remaining queues and sets their gauges. Queues with the same name share their
    /// series: values are summed, except the longest run, which is the maximum.
    fn refresh(&self, queues: &mut Vec<(&'static str, Observe)>) {
        self.depth.reset();
        self.held.reset();
        self.tokens.reset();
        self.unfinished.reset();
        self.longest.reset();
        queues.retain(|(name, observe)| {
            let Some((snapshot, tokens)) = observe() else {
                return false;
            };
            let count = |keys: usize| i64::try_from(keys).unwrap_or(i64::MAX);
            let depth = count(snapshot.ready + snapshot.rerun);
            self.depth.with_label_values(&[*name]).add(depth);
            self.held.with_label_values(&[*name]).add(count(snapshot.held));
            if let Some(tokens) = tokens {
                self.tokens.with_label_values(&[*name]).add(tokens);
            }
            self.unfinished
                .with_label_values(&[*name])
                .add(snapshot.unfinished.as_secs_f64());
            let longest: Gauge = self.longest.with_label_values(&[*name]);
            longest.set(
                longest
                    .get()
                    .max(snapshot.longest_running.unwrap_or_default().as_secs_f64()),
            );
            true
        });
    }
}

/// One collector for all families, because observing a queue may also count keys that have
/// become due.
impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        self.0.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut queues = self.0.queues.lock();
        self.0.refresh(&mut queues);
        self.0.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

/// Work that never waits in a queue. See [`Metrics::direct`].
pub struct UnqueuedWork(Series);

impl UnqueuedWork {
    /// Records one completed piece of work.
    pub fn done(&self, waited: Duration, worked: Duration) {
        self.0.adds.inc();
        self.0.waited(waited);
        self.0.worked(worked);
    }
}

/// The counters and histograms of one queue.
pub(crate) struct Series {
    adds: IntCounter,
    retries: IntCounter,
    queue_durations: Histogram,
    work_durations: Histogram,
}

impl Series {
    pub(crate) fn count(&self, tally: Tally) {
        let Tally { added, retried } = tally;
        if added > 0 {
            self.adds.inc_by(added);
        }
        if retried > 0 {
            self.retries.inc_by(retried);
        }
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.queue_durations.observe(time.as_secs_f64());
    }

    pub(crate) fn worked(&self, time: Duration) {
        self.work_durations.observe(time.as_secs_f64());
    }
}
