//! The state of each watch, for health checks and metrics.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_api::{ObjectKey, Resource};
use portreeve_client::ApiErrorKind;
use prometheus::{Histogram, HistogramOpts};
use tokio::time::Instant;

use crate::reconnects::{Reconnects, RelistReason, RestartReason};

/// The buckets of the time in which a watch event is processed, in seconds.
const PROCESSING_BUCKETS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The state of one watch.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the watch, such as `foos.v1alpha1.samplecontroller.k8s.io`, with its namespace
    /// and selectors if it has any.
    pub name: String,
    /// The resource.
    pub resource: Resource,
    /// Whether every informer has ever received a complete list.
    pub synced: bool,
    /// When the apiserver last responded to this watch or sent data on it, or when a sink panicked,
    /// if earlier.
    pub last_contact: Option<Instant>,
    /// The current failure, or `None` while the watch makes progress.
    pub failure: Option<WatchFailure>,
    /// Whether the apiserver can convert the objects to another version, and why it cannot. `None`
    /// if no webhook converts them, or before the first probe.
    pub conversion: Option<Result<(), ConversionFailure>>,
    /// Existing objects that cannot be decoded, and why.
    pub undecodable: Vec<(ObjectKey, String)>,
    /// The number of stored objects, in the informer that stores the most.
    pub objects: usize,
    /// How often the watch has listed again and has resumed.
    pub reconnects: Reconnects,
    /// The last received resourceVersion, if it is a number.
    pub resource_version: Option<u64>,
    /// The times in which all readers of a watch event have processed it, in seconds. The name and
    /// the help of the metric are for the caller to set.
    pub processing: Option<Histogram>,
}

/// The current failure of a watch or of one of its readers.
#[derive(Clone, Debug)]
pub struct WatchFailure {
    /// The kind of the failure.
    pub kind: ApiErrorKind,
    /// The error, with its sources.
    pub message: String,
}

/// The apiserver's answer when it cannot convert the objects of a resource.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ConversionFailure(pub(crate) String);

/// The status of a watch, written by its loop. Cheap to clone; all clones share one status.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusReporter {
    status: Arc<Mutex<WatchStatus>>,
    /// Empty for a watch that reports do not mention, since there may be hundreds of them.
    processing: Arc<OnceLock<Histogram>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WatchStatus {
    pub(crate) last_contact: Option<Instant>,
    pub(crate) failure: Option<WatchFailure>,
    pub(crate) conversion: Option<Result<(), ConversionFailure>>,
    pub(crate) reconnects: Reconnects,
    pub(crate) resource_version: Option<u64>,
    /// The number of objects of the last complete list and the changes since then.
    pub(crate) objects: i64,
}

impl StatusReporter {
    /// Records that the apiserver responded or sent data. Returns whether this ends a failure.
    pub(crate) fn record_contact(&self, now: Instant) -> bool {
        let mut status = self.status.lock();
        status.last_contact = Some(now);
        status.failure.take().is_some()
    }

    /// Records a failure. Returns whether it is new, which means that there was no failure before,
    /// or one of another kind.
    pub(crate) fn record_failure(&self, failure: WatchFailure) -> bool {
        let kind = failure.kind;
        let before = self.status.lock().failure.replace(failure);
        before.is_none_or(|before| before.kind != kind)
    }

    /// Records whether objects can be converted. Returns whether that has changed; at first, they
    /// count as convertible.
    pub(crate) fn record_conversion(&self, conversion: Result<(), ConversionFailure>) -> bool {
        let is_ok = conversion.is_ok();
        let before = self.status.lock().conversion.replace(conversion);
        before.is_none_or(|before| before.is_ok()) != is_ok
    }

    /// Records that no webhook converts the objects.
    pub(crate) fn forget_conversion(&self) {
        self.status.lock().conversion = None;
    }

    /// Records the resourceVersion of a list or a line. One that is not a number is ignored.
    /// Returns whether it is lower than the last one.
    pub(crate) fn record_version(&self, version: &str) -> bool {
        let Ok(version) = version.parse() else {
            return false;
        };
        let last = self.status.lock().resource_version.replace(version);
        last.is_some_and(|last| version < last)
    }

    /// Records the number of objects of a complete list. Call it before the version of the list is
    /// recorded, so that the recorded version is never newer than the number.
    pub(crate) fn set_objects(&self, objects: usize) {
        self.status.lock().objects = i64::try_from(objects).unwrap_or(i64::MAX);
    }

    /// Records by how much a change has changed the number of objects, before its version.
    pub(crate) fn change_objects(&self, change: i64) {
        self.status.lock().objects += change;
    }

    pub(crate) fn count_relist(&self, reason: RelistReason) {
        self.status.lock().reconnects.count_relist(reason);
    }

    pub(crate) fn count_restart(&self, reason: RestartReason) {
        self.status.lock().reconnects.count_restart(reason);
    }

    /// Begins to measure the times in which events are processed.
    pub(crate) fn measure_processing(&self) {
        let options = HistogramOpts::new("informer_processing_latency_seconds", "-");
        // The name and the buckets are valid.
        if let Ok(histogram) = Histogram::with_opts(options.buckets(PROCESSING_BUCKETS.to_vec())) {
            self.processing.get_or_init(|| histogram);
        }
    }

    /// Records the time in which a watch event was processed.
    pub(crate) fn observe_processing(&self, duration: Duration) {
        if let Some(histogram) = self.processing.get() {
            histogram.observe(duration.as_secs_f64());
        }
    }

    pub(crate) fn processing(&self) -> Option<Histogram> {
        self.processing.get().cloned()
    }

    /// Returns the current failure, or `None` while the watch makes progress.
    pub(crate) fn failure(&self) -> Option<WatchFailure> {
        self.status.lock().failure.clone()
    }

    /// Returns when the apiserver last responded or sent data.
    pub(crate) fn last_contact(&self) -> Option<Instant> {
        self.status.lock().last_contact
    }

    pub(crate) fn status(&self) -> WatchStatus {
        self.status.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_decreases_is_noticed() {
        let reporter = StatusReporter::default();
        let versions = ["7", "7", "12", "opaque", "9", "10"].map(|version| reporter.record_version(version));
        assert_eq!(versions, [false, false, false, false, true, false]);
    }

    #[test]
    fn only_a_new_failure_and_its_end_are_reported_as_new() {
        let reporter = StatusReporter::default();
        let failure = |kind| {
            let message = "why".to_owned();
            reporter.record_failure(WatchFailure { kind, message })
        };
        assert!(!reporter.record_contact(Instant::now()));
        assert!(failure(ApiErrorKind::Transient));
        assert!(!failure(ApiErrorKind::Transient));
        assert!(failure(ApiErrorKind::Forbidden));
        assert!(reporter.record_contact(Instant::now()));
        assert!(!reporter.record_contact(Instant::now()));
    }
}
