//! `/metrics` in Prometheus' text format, and the serving metrics.
//!
//! The serving metrics are those of the process (`process_resident_memory_bytes` and others) and
//! the results of health checks under Kubernetes' names. All other metrics come from the caller's
//! registry.
//!
//! Architecture Invariant: no global registry.

use std::collections::HashSet;

use portreeve_metrics::Registry;
use prometheus::core::Collector;
use prometheus::proto::LabelPair;
use prometheus::{Gauge, GaugeVec, IntCounterVec, Opts, TextEncoder};

use crate::tls::Identity;
use crate::{Check, HealthStatus};

/// The content type of the text that [`Metrics::render`] returns.
pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

pub(crate) const RELOAD_SUCCESS: &str = "success";
pub(crate) const RELOAD_FAILURE: &str = "failure";

const STATUSES: [&str; 2] = ["success", "error"];

/// The registry that `/metrics` renders, with the metrics that this crate adds to it.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    healthcheck: GaugeVec,
    healthchecks_total: IntCounterVec,
    pub(crate) certificate_reloads: IntCounterVec,
    certificate_expiry: Gauge,
}

impl Metrics {
    /// Registers the serving metrics.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already contains one of these metrics.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let healthcheck = GaugeVec::new(
            Opts::new(
                "kubernetes_healthcheck",
                "Last result of a health check: 1 success, 0 failure.",
            ),
            &["name", "type"],
        )?;
        let healthchecks_total = IntCounterVec::new(
            Opts::new("kubernetes_healthchecks_total", "Number of results of a health check."),
            &["name", "type", "status"],
        )?;
        let certificate_reloads = IntCounterVec::new(
            Opts::new(
                "portreeve_serving_certificate_reloads_total",
                "Number of reloads of a changed serving certificate, by status. Changed files that cannot be used are \
                 a failure at each attempt.",
            ),
            &["status"],
        )?;
        let certificate_expiry = Gauge::new(
            "portreeve_serving_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires, in seconds since 1970.",
        )?;
        // A rate needs the series before the first failure.
        for status in [RELOAD_SUCCESS, RELOAD_FAILURE] {
            certificate_reloads.with_label_values(&[status]);
        }
        registry.register(Box::new(healthcheck.clone()))?;
        registry.register(Box::new(healthchecks_total.clone()))?;
        registry.register(Box::new(certificate_reloads.clone()))?;
        registry.register(Box::new(certificate_expiry.clone()))?;
        #[cfg(target_os = "linux")]
        registry.register(Box::new(crate::process::ProcessCollector::new()?))?;
        Ok(Self {
            registry: registry.clone(),
            healthcheck,
            healthchecks_total,
            certificate_reloads,
            certificate_expiry,
        })
    }

    /// Counts a certificate that cannot be used, and that the caller therefore does not pass on.
    pub fn count_unusable_certificate(&self) {
        self.certificate_reloads.with_label_values(&[RELOAD_FAILURE]).inc();
    }

    /// Records that this certificate is served.
    pub(crate) fn use_certificate(&self, identity: &Identity) {
        // Seconds since 1970 are far below 2^53.
        #[expect(clippy::cast_precision_loss)]
        self.certificate_expiry.set(identity.expires_at.as_second() as f64);
    }

    /// Records the results of an endpoint. `all` are the existing checks, `evaluated` are those
    /// that the client did not exclude.
    ///
    /// A check may disappear, for example with its informer. Its series are then deleted, so that
    /// no dashboard shows its last failure forever and memory use stays bounded.
    pub(crate) fn observe<'a>(&self, endpoint: &str, all: &[Check], evaluated: impl Iterator<Item = &'a Check>) {
        let existing: HashSet<&str> = all.iter().map(|check| check.name.as_str()).collect();
        for family in self.healthcheck.collect() {
            for metric in family.get_metric() {
                let labels = metric.get_label();
                let label = |key: &str| labels.iter().find(|label| label.name() == key).map(LabelPair::value);
                if let (Some(name), Some(kind)) = (label("name"), label("type"))
                    && kind == endpoint
                    && !existing.contains(name)
                {
                    self.delete_series(name, endpoint);
                }
            }
        }
        for Check { name, state } in evaluated {
            let (value, status) = match state {
                HealthStatus::Ok | HealthStatus::Note(_) => (1.0, STATUSES[0]),
                HealthStatus::Failed(_) => (0.0, STATUSES[1]),
            };
            self.healthcheck
                .with_label_values(&[name.as_str(), endpoint])
                .set(value);
            self.healthchecks_total
                .with_label_values(&[name.as_str(), endpoint, status])
                .inc();
        }
    }

    /// Deletes the series of a check. Errors are ignored: a series may not exist, because a check
    /// never failed or another request has just deleted it.
    fn delete_series(&self, name: &str, endpoint: &str) {
        _ = self.healthcheck.remove_label_values(&[name, endpoint]);
        for status in STATUSES {
            _ = self.healthchecks_total.remove_label_values(&[name, endpoint, status]);
        }
    }

    /// Renders the results of the health checks as text, from which Kubernetes computes service
    /// levels.
    ///
    /// # Errors
    ///
    /// Returns an error when a family cannot be encoded.
    pub(crate) fn render_slis(&self) -> Result<String, prometheus::Error> {
        let families = self.healthcheck.collect().into_iter();
        let families = families.chain(self.healthchecks_total.collect());
        // The encoder rejects families without series, which is what they are before the first
        // check. A registry leaves them out, as here.
        let families: Vec<_> = families.filter(|family| !family.get_metric().is_empty()).collect();
        TextEncoder::new().encode_to_string(&families)
    }

    /// Renders everything in the registry as text.
    ///
    /// # Errors
    ///
    /// Returns an error when a collector returns a family that cannot be encoded.
    pub(crate) fn render(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn check(metrics: &Metrics, expected: &Expect) {
        let text = metrics.render().unwrap();
        let lines = text
            .lines()
            .filter(|line| line.contains("healthcheck") && !line.starts_with('#'));
        expected.assert_eq(&lines.collect::<Vec<_>>().join("\n"));
    }

    #[test]
    fn checks_are_counted_and_removed_when_gone() {
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let checks = [
            Check::ok("ping"),
            Check::note("crd", "missing"),
            Check::failed("informer", "forbidden"),
        ];
        metrics.observe("readyz", &checks, checks.iter());
        metrics.observe("readyz", &checks, checks[..1].iter());
        metrics.observe("livez", &checks[2..], checks[2..].iter());
        check(
            &metrics,
            &expect![[r#"
            kubernetes_healthcheck{name="crd",type="readyz"} 1
            kubernetes_healthcheck{name="informer",type="livez"} 0
            kubernetes_healthcheck{name="informer",type="readyz"} 0
            kubernetes_healthcheck{name="ping",type="readyz"} 1
            kubernetes_healthchecks_total{name="crd",status="success",type="readyz"} 1
            kubernetes_healthchecks_total{name="informer",status="error",type="livez"} 1
            kubernetes_healthchecks_total{name="informer",status="error",type="readyz"} 1
            kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 2"#]],
        );

        metrics.observe("readyz", &checks[..1], checks[..1].iter());
        check(
            &metrics,
            &expect![[r#"
            kubernetes_healthcheck{name="informer",type="livez"} 0
            kubernetes_healthcheck{name="ping",type="readyz"} 1
            kubernetes_healthchecks_total{name="informer",status="error",type="livez"} 1
            kubernetes_healthchecks_total{name="ping",status="success",type="readyz"} 3"#]],
        );
    }

    #[test]
    fn slis_are_empty_before_the_first_check() {
        let metrics = Metrics::register(&Registry::new()).unwrap();
        assert_eq!(metrics.render_slis().unwrap(), "");
        metrics.observe("livez", &[Check::ok("ping")], [Check::ok("ping")].iter());
        let text = metrics.render_slis().unwrap();
        assert!(
            text.contains(r#"kubernetes_healthcheck{name="ping",type="livez"} 1"#),
            "{text}"
        );
    }
}
