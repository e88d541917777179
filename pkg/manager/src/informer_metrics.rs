//! The metrics of informers, which are read from the factory at each scrape. A gauge that is set
//! elsewhere would be outdated between updates.
//!
//! The series of a watch end with it. Watches that only the garbage collector reads have none:
//! there may be hundreds of them, and `gc_monitor_synced` shows their state.

use std::collections::HashMap;

use parking_lot::Mutex;
use portreeve_informer::{Factory, Report};
use portreeve_metrics::Registry;
use prometheus::{
    Gauge, GaugeVec, IntCounterVec, IntGaugeVec, Opts,
    core::{Collector, Desc, Metric},
    proto::{LabelPair, MetricFamily, MetricType},
};

/// The labels of the metrics that Kubernetes' components have too: the program and the resource.
const KUBERNETES_LABELS: [&str; 4] = ["name", "group", "version", "resource"];
/// Kubernetes exports only the last 15 digits of a resourceVersion, which a float represents
/// exactly.
const EXPORTED_DIGITS: u64 = 1_000_000_000_000_000;

pub(crate) fn register(registry: &Registry, factory: Factory, program: &'static str) -> Result<(), prometheus::Error> {
    let families = Families::new()?;
    registry.register(Box::new(Informers {
        factory,
        program,
        families,
        scraping: Mutex::new(()),
    }))
}

struct Informers {
    factory: Factory,
    program: &'static str,
    families: Families,
    /// Serializes scrapes: a concurrent scrape would read metrics that were just reset.
    scraping: Mutex<()>,
}

struct Families {
    synced: IntGaugeVec,
    objects: IntGaugeVec,
    undecodable: IntGaugeVec,
    relists: IntCounterVec,
    restarts: IntCounterVec,
    contact_ages: GaugeVec,
    versions: GaugeVec,
    processing: Desc,
}

impl Families {
    fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| IntGaugeVec::new(Opts::new(name, help), &["resource"]);
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["resource", "reason"]);
        Ok(Self {
            synced: gauge(
                "portreeve_informer_synced",
                "Whether the watch has seen a complete list (1) or not yet (0).",
            )?,
            objects: gauge(
                "portreeve_informer_objects",
                "Number of objects in the store of the watch.",
            )?,
            undecodable: gauge(
                "portreeve_informer_undecodable_objects",
                "Number of objects that exist and cannot be decoded.",
            )?,
            relists: counter(
                "portreeve_informer_relists_total",
                "Number of lists after the first, by reason: term (this replica became the leader), expired (HTTP \
                 410), silence (watches brought nothing), watch_failed, reader (another reader needs a list, \
                 or the cache may be outdated), list_failed (the last list failed), version (objects are stored in another version).",
            )?,
            restarts: counter(
                "portreeve_informer_watch_restarts_total",
                "Number of watches that resumed without a list, by how the earlier one ended: closed (by the \
                 apiserver, after some minutes), ended_at_once, idle (no line within --watch-idle-timeout), broken \
                 (connection), rejected (or no response).",
            )?,
            contact_ages: GaugeVec::new(
                Opts::new(
                    "portreeve_informer_last_contact_age_seconds",
                    "Seconds since the apiserver last responded to the watch or sent data on it. No series before the \
                     first contact.",
                ),
                &["resource"],
            )?,
            versions: GaugeVec::new(
                Opts::new(
                    "informer_store_resource_version",
                    "The last 15 digits of the newest resourceVersion that the informer has received.",
                ),
                &KUBERNETES_LABELS,
            )?,
            processing: Desc::new(
                "informer_processing_latency_seconds".to_owned(),
                "Seconds in which all readers of an informer processed a watch event.".to_owned(),
                KUBERNETES_LABELS.map(str::to_owned).to_vec(),
                HashMap::new(),
            )?,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 7] {
        let Self {
            synced,
            objects,
            undecodable,
            relists,
            restarts,
            contact_ages,
            versions,
            processing: _,
        } = self;
        [synced, objects, undecodable, relists, restarts, contact_ages, versions]
    }

    fn reset(&self) {
        self.synced.reset();
        self.objects.reset();
        self.undecodable.reset();
        self.relists.reset();
        self.restarts.reset();
        self.contact_ages.reset();
        self.versions.reset();
    }

    fn set(&self, report: &Report, program: &str) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let name = report.name.as_str();
        self.synced.with_label_values(&[name]).set(report.synced.into());
        self.objects.with_label_values(&[name]).set(count(report.objects));
        self.undecodable
            .with_label_values(&[name])
            .set(count(report.undecodable.len()));
        for (reason, number) in report.reconnects.relists() {
            self.relists.with_label_values(&[name, reason]).inc_by(number);
        }
        for (reason, number) in report.reconnects.restarts() {
            self.restarts.with_label_values(&[name, reason]).inc_by(number);
        }
        if let Some(contact) = report.last_contact {
            let age = contact.elapsed().as_secs_f64();
            self.contact_ages.with_label_values(&[name]).set(age);
        }
        if let Some(version) = report.resource_version
            && covers_all_objects(report)
        {
            let resource = &report.resource;
            let labels = [program, &resource.group, &resource.version, &resource.plural];
            let gauge: Gauge = self.versions.with_label_values(&labels);
            // Below 2^53, so the conversion is exact.
            #[expect(clippy::cast_precision_loss, reason = "the number has 15 digits")]
            gauge.set((version % EXPORTED_DIGITS) as f64);
        }
    }

    /// Returns the histograms of the watches as one family.
    fn processing(&self, reports: &[Report], program: &str) -> MetricFamily {
        let pair = |name: &str, value: &str| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        };
        let complete = reports.iter().filter(|report| covers_all_objects(report));
        let metrics = complete.filter_map(|report| {
            let resource = &report.resource;
            let mut metric = report.processing.as_ref()?.metric();
            // Sorted by name, as everywhere in a registry.
            metric.set_label(vec![
                pair("group", &resource.group),
                pair("name", program),
                pair("resource", &resource.plural),
                pair("version", &resource.version),
            ]);
            Some(metric)
        });
        let mut family = MetricFamily::default();
        family.set_name(self.processing.fq_name.clone());
        family.set_help(self.processing.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(metrics.collect());
        family
    }
}

/// Returns whether the watch has no namespace and no selector. Only one such watch exists for each
/// resource, so that its series have labels of their own.
fn covers_all_objects(report: &Report) -> bool {
    report.name == report.resource.to_string()
}

impl Collector for Informers {
    fn desc(&self) -> Vec<&Desc> {
        let descriptions = self.families.collectors().into_iter().flat_map(Collector::desc);
        descriptions.chain([&self.families.processing]).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _alone = self.scraping.lock();
        let reports = self.factory.reports();
        self.families.reset();
        for report in &reports {
            self.families.set(report, self.program);
        }
        let collected = self.families.collectors().into_iter().flat_map(Collector::collect);
        collected
            .chain([self.families.processing(&reports, self.program)])
            .collect()
    }
}
