//! The metrics of webhooks, with the names and labels of controller-runtime.

use std::time::Duration;

use http::StatusCode;
use portreeve_metrics::Registry;
use portreeve_reconcile::admission::WebhookHandler;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};

use crate::answer::Decision;

/// From a millisecond to the longest time limit of an apiserver.
const LATENCY_BUCKETS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0,
];

/// The metrics of webhooks.
#[derive(Clone)]
pub struct Metrics {
    latency: HistogramVec,
    requests: IntCounterVec,
    in_flight: IntGaugeVec,
    panics: IntCounter,
    decisions: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already contains one of them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let latency = HistogramVec::new(
            HistogramOpts::new(
                "controller_runtime_webhook_latency_seconds",
                "Seconds from the head of a request of the apiserver to its response, by the path of the webhook.",
            )
            .buckets(LATENCY_BUCKETS.to_vec()),
            &["webhook"],
        )?;
        let requests = IntCounterVec::new(
            Opts::new(
                "controller_runtime_webhook_requests_total",
                "Number of requests to a webhook, by HTTP status code. A denial has the code 200.",
            ),
            &["webhook", "code"],
        )?;
        let in_flight = IntGaugeVec::new(
            Opts::new(
                "controller_runtime_webhook_requests_in_flight",
                "Number of requests to a webhook that have no response yet.",
            ),
            &["webhook"],
        )?;
        let panics = IntCounter::new(
            "controller_runtime_webhook_panics_total",
            "Number of panics in the functions of webhooks.",
        )?;
        let decisions = IntCounterVec::new(
            Opts::new(
                "portreeve_webhook_decisions_total",
                "Number of requests that a webhook allowed, patched, denied, converted or failed to convert.",
            ),
            &["webhook", "decision"],
        )?;
        registry.register(Box::new(latency.clone()))?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(panics.clone()))?;
        registry.register(Box::new(decisions.clone()))?;
        Ok(Self {
            latency,
            requests,
            in_flight,
            panics,
            decisions,
        })
    }

    /// Lets the counters of a webhook start at 0, so that the first failure is an increase.
    pub(crate) fn start(&self, webhook: &str, handler: &WebhookHandler) {
        let decisions = match handler {
            WebhookHandler::Default(_) => [Decision::Allowed, Decision::Patched],
            WebhookHandler::Validate(_) => [Decision::Allowed, Decision::Denied],
            WebhookHandler::Convert(_) => [Decision::Converted, Decision::Failed],
        };
        for decision in decisions {
            self.decisions.with_label_values(&[webhook, decision.label()]);
        }
        for code in [StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR] {
            self.requests.with_label_values(&[webhook, code.as_str()]);
        }
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn begin(&self, webhook: &str) -> InFlight {
        let gauge = self.in_flight.with_label_values(&[webhook]);
        gauge.inc();
        InFlight(gauge)
    }

    pub(crate) fn observe(&self, webhook: &str, code: u16, took: Duration) {
        self.requests.with_label_values(&[webhook, &code.to_string()]).inc();
        self.latency.with_label_values(&[webhook]).observe(took.as_secs_f64());
    }

    pub(crate) fn count_panic(&self) {
        self.panics.inc();
    }

    pub(crate) fn count_decision(&self, webhook: &str, decision: Decision) {
        self.decisions.with_label_values(&[webhook, decision.label()]).inc();
    }
}

/// A request that has no response yet.
pub(crate) struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
