//! The collector's metrics. Those of the graph are computed when they are scraped.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use portreeve_garbagecollector_graph::Statistics;
use portreeve_metrics::Registry;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
};
use tokio::time::Instant;

use super::CollectorContext;

/// The metrics that are updated as things happen.
pub(super) struct Metrics {
    pub(super) sync_errors: IntCounter,
    attempts: IntCounterVec,
    pub(super) cascades: Histogram,
    /// How often resourceVersions were seen to decrease.
    pub(super) restores: IntCounter,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            sync_errors: IntCounter::new(
                "garbagecollector_controller_resources_sync_error_total",
                "Number of requests for the served resources that failed.",
            )?,
            attempts: IntCounterVec::new(
                Opts::new(
                    "gc_attempts_total",
                    "Number of attempts to collect an object, by action and result.",
                ),
                &["action", "result"],
            )?,
            cascades: Histogram::with_opts(
                HistogramOpts::new(
                    "gc_cascade_duration_seconds",
                    "Seconds from the deletion of an owner until its last dependent was deleted or no longer referred to it.",
                )
                .buckets(exponential_buckets(0.005, 2.0, 18)?),
            )?,
            restores: IntCounter::new(
                "gc_version_decreases_total",
                "Number of times that resourceVersions were seen to decrease, as after a restore of etcd.",
            )?,
        };
        registry.register(Box::new(metrics.sync_errors.clone()))?;
        registry.register(Box::new(metrics.attempts.clone()))?;
        registry.register(Box::new(metrics.cascades.clone()))?;
        registry.register(Box::new(metrics.restores.clone()))?;
        Ok(metrics)
    }

    pub(super) fn count_attempt(&self, action: &str, result: &str) {
        self.attempts.with_label_values(&[action, result]).inc();
    }
}

/// The metrics that are computed when they are scraped.
struct GraphCollector {
    ctx: Weak<CollectorContext>,
    nodes: IntGaugeVec,
    edges: IntGauge,
    bytes: IntGauge,
    absent: IntGauge,
    hits: IntCounter,
    misses: IntCounter,
    blocked: IntGauge,
    unknown: IntGaugeVec,
    orphaned: IntGauge,
    oldest: Gauge,
    synced: IntGaugeVec,
    invalid: IntGaugeVec,
    tripped: IntGauge,
    /// Serializes scrapes: another scrape would read gauges that this one has just reset.
    scraping: Mutex<()>,
}

/// Registers the metrics that are computed when they are scraped.
pub(super) fn register_graph(ctx: &Arc<CollectorContext>, registry: &Registry) -> Result<(), prometheus::Error> {
    let gauges = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
    let observed = GraphCollector {
        ctx: Arc::downgrade(ctx),
        nodes: gauges(
            "gc_graph_nodes",
            "Number of objects in the graph, by resource and state: observed by a watch, or virtual (known only from references).",
            &["gvr", "state"],
        )?,
        edges: IntGauge::new("gc_graph_edges", "Number of references to owners in the graph.")?,
        bytes: IntGauge::new("gc_graph_bytes", "Approximate memory that the graph takes, in bytes.")?,
        absent: IntGauge::new(
            "gc_absent_owner_cache_size",
            "Number of owners that are proven absent and to which objects still refer.",
        )?,
        hits: IntCounter::new(
            "gc_absent_owner_cache_hits_total",
            "Number of lookups that found an owner proven absent.",
        )?,
        misses: IntCounter::new(
            "gc_absent_owner_cache_misses_total",
            "Number of lookups that found no proof that an owner is absent.",
        )?,
        blocked: IntGauge::new(
            "gc_blocked_owners",
            "Number of owners that wait for dependents that block their deletion.",
        )?,
        unknown: gauges(
            "gc_unknown_owners",
            "Number of owners of which it is unknown whether they exist, because they cannot be read, by resource.",
            &["gvr"],
        )?,
        orphaned: IntGauge::new(
            "gc_orphaned_owners",
            "Number of owners that were deleted with propagationPolicy Orphan before all resources could be listed.",
        )?,
        oldest: Gauge::new(
            "gc_oldest_pending_seconds",
            "Seconds for which the oldest pending object has been waiting for a successful attempt.",
        )?,
        synced: gauges(
            "gc_monitor_synced",
            "Whether the resource is synced (1) or not (0).",
            &["gvr"],
        )?,
        invalid: gauges(
            "gc_invalid_owner_refs",
            "Number of owner references whose namespace or coordinates do not match the owner with their UID.",
            &["reason"],
        )?,
        tripped: IntGauge::new(
            "gc_breaker_tripped",
            "Whether deletions are stopped because --gc-max-deletions-per-minute was reached (1) or not (0).",
        )?,
        scraping: Mutex::new(()),
    };
    registry.register(Box::new(observed))
}

impl GraphCollector {
    fn all(&self) -> [&dyn Collector; 13] {
        [
            &self.nodes,
            &self.edges,
            &self.bytes,
            &self.absent,
            &self.hits,
            &self.misses,
            &self.blocked,
            &self.unknown,
            &self.orphaned,
            &self.oldest,
            &self.synced,
            &self.invalid,
            &self.tripped,
        ]
    }

    fn refresh(&self, ctx: &CollectorContext) {
        let Statistics {
            nodes,
            edges,
            bytes,
            absent,
            lookups,
            blocked,
            invalid,
        } = ctx.graph.lock().statistics();
        let unknown = {
            let (graph, mut failures) = (ctx.graph.lock(), ctx.failures.lock());
            failures.unknown_owners(|owner| graph.is_unproven_owner(owner))
        };
        self.unknown.reset();
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        for ((api_version, kind), number) in unknown {
            let gvr = ctx.resource_label(&api_version, &kind);
            self.unknown.with_label_values(&[&gvr]).add(count(number));
        }
        self.nodes.reset();
        for (api_version, kind, observed, virtual_) in nodes {
            let gvr = ctx.resource_label(&api_version, &kind);
            for (state, number) in [("observed", observed), ("virtual", virtual_)] {
                if number > 0 {
                    self.nodes.with_label_values(&[&*gvr, state]).add(number.into());
                }
            }
        }
        self.edges.set(count(edges));
        self.bytes.set(count(bytes));
        self.absent.set(count(absent));
        self.hits.inc_by(lookups.hits.saturating_sub(self.hits.get()));
        self.misses.inc_by(lookups.misses.saturating_sub(self.misses.get()));
        self.blocked.set(count(blocked));
        self.orphaned.set(count(ctx.graph.lock().orphaned_owners().len()));
        for (reason, number) in invalid {
            self.invalid
                .with_label_values(&[reason.label()])
                .set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        self.oldest.set(ctx.oldest_pending());
        self.synced.reset();
        for state in ctx.watched.borrow().iter() {
            let gvr = state.resource.to_string();
            self.synced.with_label_values(&[&gvr]).set(state.is_synced().into());
        }
        self.tripped.set(ctx.breaker.tripped().is_some().into());
    }
}

impl CollectorContext {
    /// Returns the value of the label `gvr` for a kind, which may not be served.
    fn resource_label(&self, api_version: &str, kind: &str) -> String {
        let served = self.served.borrow();
        let resource = served.as_ref().and_then(|served| served.lookup(api_version, kind));
        resource.map_or_else(|| format!("{kind}.{api_version}"), ToString::to_string)
    }

    /// Returns how long the oldest object has been waiting, in seconds.
    fn oldest_pending(&self) -> f64 {
        let queued = [&self.attempts, &self.orphans].map(|queue| queue.observe().oldest_ready);
        let queued = queued.into_iter().flatten().max().unwrap_or_default();
        let failing = self.failures.lock().longest(Instant::now());
        queued.max(failing.unwrap_or_default()).as_secs_f64()
    }
}

impl Collector for GraphCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.all().iter().flat_map(|metric| metric.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _alone = self.scraping.lock();
        let Some(ctx) = self.ctx.upgrade() else {
            return Vec::new();
        };
        self.refresh(&ctx);
        self.all().iter().flat_map(|metric| metric.collect()).collect()
    }
}
