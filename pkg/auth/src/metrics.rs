//! The metrics of authentication and authorization, with the names of Kubernetes' delegated ones.
//!
//! Architecture Invariant: no label has a value that a caller chooses.

use std::time::Duration;

use portreeve_metrics::Registry;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, exponential_buckets};

/// The buckets of reviews, in seconds.
const REVIEW_BUCKETS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

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
    pub(crate) token_cache: TokenCacheMetrics,
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
                (
                    "authentication_attempts",
                    "Number of authenticated requests to the listener, by result: success or error.",
                ),
                (
                    "authentication_duration_seconds",
                    "Duration of the authentication of a request in seconds, by result.",
                ),
                &attempts,
            )?,
            authorization: step(
                "result",
                (
                    "authorization_attempts_total",
                    "Number of authorized requests to the listener, by result: allowed, no-opinion or error.",
                ),
                (
                    "authorization_duration_seconds",
                    "Duration of the authorization of a request in seconds, by result.",
                ),
                &attempts,
            )?,
            token_reviews: reviews(registry, "authn", "TokenReviews")?,
            access_reviews: reviews(registry, "authz", "SubjectAccessReviews")?,
            token_cache: TokenCacheMetrics::register(registry)?,
        })
    }
}

/// Registers the metrics of one kind of review, which is a part of their names.
fn reviews(registry: &Registry, kind: &str, object: &str) -> Result<StepMetrics, prometheus::Error> {
    let name = |end| format!("apiserver_delegated_{kind}_request_{end}");
    StepMetrics::register(
        registry,
        "code",
        (
            &name("total"),
            &format!("Number of {object}, by the status code of the response."),
        ),
        (
            &name("duration_seconds"),
            &format!("Duration of {object} in seconds, by status code."),
        ),
        &REVIEW_BUCKETS,
    )
}

/// The metrics of the cache of tokens.
#[derive(Clone)]
pub(crate) struct TokenCacheMetrics {
    /// Whether tokens were found in the cache.
    pub(crate) requests: StepMetrics,
    /// Reviews for the cache, by whether they were answered.
    pub(crate) fetches: IntCounterVec,
    /// Reviews in flight, and requests that wait for one.
    active_fetches: IntGaugeVec,
}

impl TokenCacheMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = StepMetrics::register(
            registry,
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
        )?;
        let fetches = IntCounterVec::new(
            Opts::new(
                "authentication_token_cache_fetch_total",
                "Number of TokenReviews for the cache, by status: ok, or error if the apiserver did not answer.",
            ),
            &["status"],
        )?;
        let active_fetches = IntGaugeVec::new(
            Opts::new(
                "authentication_token_cache_active_fetch_count",
                "Number of TokenReviews in flight (in_flight), and of requests that wait for one (blocked).",
            ),
            &["status"],
        )?;
        registry.register(Box::new(fetches.clone()))?;
        registry.register(Box::new(active_fetches.clone()))?;
        Ok(Self {
            requests,
            fetches,
            active_fetches,
        })
    }

    /// Counts an active fetch until the result is dropped.
    pub(crate) fn active_fetch(&self, status: &str) -> ActiveFetch {
        let gauge = self.active_fetches.with_label_values(&[status]);
        gauge.inc();
        ActiveFetch(gauge)
    }
}

/// An active fetch, which is counted until it is dropped.
pub(crate) struct ActiveFetch(IntGauge);

impl Drop for ActiveFetch {
    fn drop(&mut self) {
        self.0.dec();
    }
}
