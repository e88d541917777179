//! A registry of metrics that can list its families, including those without series.
//!
//! docs/metrics.md is generated from the list. `prometheus::Registry` returns only the families
//! that have series, so a counter with labels would be missing until it is first incremented.
//! clippy.toml forbids that type elsewhere, so no family can be missing in the list.
//!
//! Gauges are computed at the scrape from the state that they show, so none is older than the
//! scrape. Series end with what they describe, above all with their watch.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::{
    Error,
    core::Collector,
    proto::{MetricFamily, MetricType},
};

/// A registry of metrics. Clones share their content.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    #[expect(clippy::disallowed_types, reason = "this type wraps it")]
    inner: prometheus::Registry,
    families: Arc<Mutex<Vec<Family>>>,
}

/// A family of metrics: those with the same name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Family {
    /// The name.
    pub name: String,
    /// What the value means, in which unit.
    pub help: String,
    /// The type.
    pub kind: Kind,
    /// The names of the labels.
    pub labels: Vec<String>,
}

/// The type of a family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A number that only increases.
    Counter,
    /// A number that increases and decreases.
    Gauge,
    /// The distribution of observed values.
    Histogram,
    /// Another type, which no metric of ours has.
    Other,
}

impl Kind {
    /// Returns the name of the type in Prometheus' text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Other => "untyped",
        }
    }
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a collector.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already contains one of its families.
    pub fn register(&self, collector: Box<dyn Collector>) -> Result<(), Error> {
        let families = families(&*collector);
        self.inner.register(collector)?;
        self.families.lock().extend(families);
        Ok(())
    }

    /// Returns the families that have series, sorted by name, with their current values.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.inner.gather()
    }

    /// Returns all families, sorted by name.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.families.lock().clone();
        families.sort_by(|a, b| a.name.cmp(&b.name));
        families
    }
}

/// Returns the families of a collector. A description has no type, so it comes from the values.
fn families(collector: &dyn Collector) -> Vec<Family> {
    let collected = collector.collect();
    let kind = |name: &str| {
        let family = collected.iter().find(|family| family.name() == name);
        match family.map(MetricFamily::get_field_type) {
            Some(MetricType::COUNTER) => Kind::Counter,
            Some(MetricType::GAUGE) => Kind::Gauge,
            Some(MetricType::HISTOGRAM) => Kind::Histogram,
            _ => Kind::Other,
        }
    };
    let descriptions = collector.desc().into_iter();
    descriptions
        .map(|description| Family {
            name: description.fq_name.clone(),
            help: description.help.clone(),
            kind: kind(&description.fq_name),
            labels: description.variable_labels.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts};

    use super::*;

    #[test]
    fn families_without_series_are_listed() {
        let registry = Registry::new();
        let counter = IntCounterVec::new(Opts::new("b_total", "Number of b."), &["code", "method"]).unwrap();
        registry.register(Box::new(counter.clone())).unwrap();
        let histogram = Histogram::with_opts(HistogramOpts::new("a_seconds", "Seconds of a.")).unwrap();
        registry.register(Box::new(histogram)).unwrap();
        let names = |families: Vec<MetricFamily>| -> Vec<String> {
            families.iter().map(|family| family.name().to_owned()).collect()
        };
        assert_eq!(names(registry.gather()), ["a_seconds"]);
        let families = registry.families();
        let rows: Vec<_> = families
            .iter()
            .map(|family| (&*family.name, family.kind.name(), family.labels.join(",")))
            .collect();
        assert_eq!(
            rows,
            [
                ("a_seconds", "histogram", String::new()),
                ("b_total", "counter", "code,method".to_owned())
            ]
        );
        assert_eq!(families[1].help, "Number of b.");

        registry.register(Box::new(counter)).unwrap_err();
        assert_eq!(registry.families(), families);
    }
}
