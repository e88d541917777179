//! The state of each watch, for health checks and metrics.

use std::sync::Arc;

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use portreeve_client::ApiErrorKind;
use tokio::time::Instant;

/// The state of one watch.
#[derive(Clone, Debug)]
pub struct Report {
    /// The name of the watch, such as `foos.v1alpha1.samplecontroller.k8s.io`, with its namespace
    /// and selectors if it has any.
    pub name: String,
    /// Whether every informer has ever received a complete list.
    pub synced: bool,
    /// When the apiserver last responded to this watch or sent data on it, or when a sink panicked,
    /// if earlier.
    pub last_contact: Option<Instant>,
    /// The current failure, or `None` while the watch makes progress.
    pub failure: Option<WatchFailure>,
    /// Existing objects that cannot be decoded, and why.
    pub undecodable: Vec<(ObjectKey, String)>,
    /// The number of stored objects, in the informer that stores the most.
    pub objects: usize,
}

/// The current failure of a watch or of one of its readers.
#[derive(Clone, Debug)]
pub struct WatchFailure {
    /// The kind of the failure.
    pub kind: ApiErrorKind,
    /// The error, with its sources.
    pub message: String,
}

/// The status of a watch, written by its loop. Cheap to clone; all clones share one status.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusReporter(Arc<Mutex<WatchStatus>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct WatchStatus {
    pub(crate) last_contact: Option<Instant>,
    pub(crate) failure: Option<WatchFailure>,
}

impl StatusReporter {
    /// Records that the apiserver responded or sent data. Returns whether this ends a failure.
    pub(crate) fn record_contact(&self, now: Instant) -> bool {
        let mut status = self.0.lock();
        status.last_contact = Some(now);
        status.failure.take().is_some()
    }

    /// Records a failure. Returns whether it is new, which means that there was no failure before,
    /// or one of another kind.
    pub(crate) fn record_failure(&self, failure: WatchFailure) -> bool {
        let kind = failure.kind;
        let before = self.0.lock().failure.replace(failure);
        before.is_none_or(|before| before.kind != kind)
    }

    /// Returns the current failure, or `None` while the watch makes progress.
    pub(crate) fn failure(&self) -> Option<WatchFailure> {
        self.0.lock().failure.clone()
    }

    /// Returns when the apiserver last responded or sent data.
    pub(crate) fn last_contact(&self) -> Option<Instant> {
        self.0.lock().last_contact
    }

    pub(crate) fn status(&self) -> WatchStatus {
        self.0.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
