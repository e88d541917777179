//! The runs of a controller by status code, as some of kube-controller-manager's count them.

use std::time::Duration;

use portreeve_metrics::Registry;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, exponential_buckets};

use crate::Applied;

const CODE: &str = "code";

/// The number of runs and their seconds.
#[derive(Debug)]
pub(super) struct SyncMetrics {
    total: IntCounterVec,
    seconds: HistogramVec,
}

impl SyncMetrics {
    /// Registers `{prefix}_sync_total` and `{prefix}_sync_duration_seconds`.
    pub(super) fn register(registry: &Registry, prefix: &str) -> Result<Self, prometheus::Error> {
        let total = Opts::new(
            format!("{prefix}_sync_total"),
            "Number of runs by HTTP status code: 200 for a success, 500 for an error without one.",
        );
        let seconds = HistogramOpts::new(
            format!("{prefix}_sync_duration_seconds"),
            "Seconds of a run by HTTP status code.",
        );
        // Those of kube-controller-manager.
        let seconds = seconds.buckets(exponential_buckets(0.001, 2.0, 15)?);
        let metrics = Self {
            total: IntCounterVec::new(total, &[CODE])?,
            seconds: HistogramVec::new(seconds, &[CODE])?,
        };
        registry.register(Box::new(metrics.total.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        Ok(metrics)
    }

    pub(super) fn observe(&self, applied: &Applied, took: Duration) {
        let code = code(applied).to_string();
        self.total.with_label_values(&[&*code]).inc();
        self.seconds.with_label_values(&[&*code]).observe(took.as_secs_f64());
    }
}

fn code(applied: &Applied) -> u16 {
    match applied {
        Applied::Done => 200,
        Applied::Stale(error) | Applied::Refused(error) | Applied::Failed { error, .. } => error.code().unwrap_or(500),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use portreeve_api::{Metadata, Resource};

    use super::*;
    use crate::{Effect, EffectError, Propagation, Target};

    /// `TestSyncCounter` of Kubernetes.
    #[test]
    fn test_sync_counter() {
        let pods = Resource::namespaced("", "v1", "Pod", "pods");
        let effect = Effect::Delete {
            target: Target::of(&pods, &Metadata::default()),
            propagation: Propagation::Background,
        };
        let refused = |source: kube::Error| Applied::Refused(EffectError::of(&effect, source));
        assert_eq!(code(&Applied::Done), 200);
        let not_found = Status::failure("gone", "NotFound").with_code(404);
        assert_eq!(code(&refused(kube::Error::Api(not_found.boxed()))), 404);
        assert_eq!(code(&refused(kube::Error::LinesCodecMaxLineLengthExceeded)), 500);
    }
}
