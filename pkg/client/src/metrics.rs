//! The `rest_client_*` metrics, with the names, labels and buckets of Kubernetes' components, and a
//! count of reloaded credentials.

use portreeve_metrics::Registry;
use prometheus::{Gauge, HistogramOpts, HistogramVec, IntCounterVec, Opts};

const DURATION_BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const SIZE_BUCKETS: &[f64] = &[
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// The metrics of the client. Create one set per registry.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) requests: IntCounterVec,
    pub(crate) durations: HistogramVec,
    pub(crate) request_sizes: HistogramVec,
    pub(crate) response_sizes: HistogramVec,
    pub(crate) limiter_durations: HistogramVec,
    pub(crate) credential_reloads: IntCounterVec,
    pub(crate) clock_offset: Gauge,
}

impl Metrics {
    pub(crate) const SUCCESS: &str = "success";
    pub(crate) const FAILURE: &str = "failure";

    /// Creates the metrics and registers them.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already contains metrics with these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            HistogramVec::new(options, &["verb", "host"])
        };
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new(
                    "rest_client_requests_total",
                    "Number of requests to the apiserver. Without a response, the code is <error>.",
                ),
                &["code", "method", "host"],
            )?,
            durations: histogram(
                "rest_client_request_duration_seconds",
                "Seconds until the end of the response to a request. Open watches are not measured.",
                DURATION_BUCKETS,
            )?,
            request_sizes: histogram(
                "rest_client_request_size_bytes",
                "Bytes in the body of a request.",
                SIZE_BUCKETS,
            )?,
            response_sizes: histogram(
                "rest_client_response_size_bytes",
                "Bytes in the body of a response.",
                SIZE_BUCKETS,
            )?,
            limiter_durations: histogram(
                "rest_client_rate_limiter_duration_seconds",
                "Seconds that a request waited for --kube-api-qps. No series without that limit.",
                DURATION_BUCKETS,
            )?,
            credential_reloads: IntCounterVec::new(
                Opts::new(
                    "portreeve_client_credential_reloads_total",
                    "Number of reloads of changed credentials for the apiserver, by status. Changed files that cannot \
                     be used are a failure at each attempt.",
                ),
                &["status"],
            )?,
            clock_offset: Gauge::new(
                "portreeve_apiserver_clock_offset_seconds",
                "Seconds by which the apiserver's clock is ahead of this machine's, by the Date of its last response, \
                 which has whole seconds.",
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.durations.clone()))?;
        registry.register(Box::new(metrics.request_sizes.clone()))?;
        registry.register(Box::new(metrics.response_sizes.clone()))?;
        registry.register(Box::new(metrics.limiter_durations.clone()))?;
        registry.register(Box::new(metrics.credential_reloads.clone()))?;
        registry.register(Box::new(metrics.clock_offset.clone()))?;
        // A rate needs the series before the first failure.
        for status in [Self::SUCCESS, Self::FAILURE] {
            metrics.credential_reloads.with_label_values(&[status]);
        }
        Ok(metrics)
    }
}
