//! The metrics of authentication and authorization, with the names of Kubernetes' delegated ones.
//!
//! Architecture Invariant: no label has a value that a caller chooses.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, exponential_buckets};

/// The buckets of reviews, in seconds.
const REVIEW_BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

const REVIEWS: &str = "Number of HTTP requests partitioned by status code.";
const REVIEW_DURATIONS: &str = "Request latency in seconds. Broken down by status code.";

/// The counter and the durations of one kind of step.
#[derive(Clone)]
pub(crate) struct StepMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
}

impl StepMetrics {
    /// Registers a counter and a histogram, each given by its name and help.
    fn register(
        registry: &Registry,
        label: &str,
        total: (&str, &str),
        duration: (&str, &str),
        buckets: &[f64],
    ) -> Result<Self, prometheus::Error> {
        let total = IntCounterVec::new(Opts::new(total.0, total.1), &[label])?;
        let options = HistogramOpts::new(duration.0, duration.1).buckets(buckets.to_vec());
        let duration = HistogramVec::new(options, &[label])?;
        registry.register(Box::new(total.clone()))?;
        registry.register(Box::new(duration.clone()))?;
        Ok(Self { total, duration })
    }

    pub(crate) fn observe(&self, label: &str, duration: Duration) {
        self.total.with_label_values(&[label]).inc();
        self.duration
            .with_label_values(&[label])
            .observe(duration.as_secs_f64());
    }
}

/// The metrics of this crate. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// By the result of the authentication of a request.
    pub(crate) authentication: StepMetrics,
    /// By the result of the authorization of a request.
    pub(crate) authorization: StepMetrics,
    /// `TokenReviews`, by status code.
    pub(crate) token_reviews: StepMetrics,
    /// `SubjectAccessReviews`, by status code.
    pub(crate) access_reviews: StepMetrics,
    /// Whether tokens were found in the cache.
    pub(crate) token_cache: StepMetrics,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    ///
    /// Returns an error when the registry already contains one of them.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let attempts = exponential_buckets(0.001, 2.0, 15)?;
        let step =
            |label, total, duration, buckets: &[f64]| StepMetrics::register(registry, label, total, duration, buckets);
        Ok(Self {
            authentication: step(
                "result",
                ("authentication_attempts", "Counter of authenticated attempts."),
                (
                    "authentication_duration_seconds",
                    "Authentication duration in seconds broken out by result.",
                ),
                &attempts,
            )?,
            authorization: step(
                "result",
                (
                    "authorization_attempts_total",
                    "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', \
                     'no-opinion' or 'error'.",
                ),
                (
                    "authorization_duration_seconds",
                    "Authorization duration in seconds broken out by result.",
                ),
                &attempts,
            )?,
            token_reviews: step(
                "code",
                ("apiserver_delegated_authn_request_total", REVIEWS),
                ("apiserver_delegated_authn_request_duration_seconds", REVIEW_DURATIONS),
                &REVIEW_BUCKETS,
            )?,
            access_reviews: step(
                "code",
                ("apiserver_delegated_authz_request_total", REVIEWS),
                ("apiserver_delegated_authz_request_duration_seconds", REVIEW_DURATIONS),
                &REVIEW_BUCKETS,
            )?,
            token_cache: step(
                "status",
                (
                    "authentication_token_cache_request_total",
                    "Number of requests with a token, by whether the cache held the answer (hit or miss).",
                ),
                (
                    "authentication_token_cache_request_duration_seconds",
                    "Duration of the authentication of a token in seconds, by whether the cache held the answer.",
                ),
                prometheus::DEFAULT_BUCKETS,
            )?,
        })
    }
}
