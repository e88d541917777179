//! What an informer says of itself, for health checks and metrics.

use std::sync::Arc;

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use portreeve_client::ApiErrorKind;
use tokio::time::Instant;

/// The state of one watch.
#[derive(Clone, Debug)]
pub struct Report {
    /// What is watched: `foos.v1alpha1.samplecontroller.k8s.io`, with the namespace and selectors if it has any.
    pub name: String,
    /// Whether a list was ever complete.
    pub synced: bool,
    /// When the apiserver was last heard of for this watch.
    pub last_contact: Option<Instant>,
    /// Why it does not make progress now, if it does not.
    pub failure: Option<WatchFailure>,
    /// Objects that exist and cannot be decoded, and why.
    pub undecodable: Vec<(ObjectKey, String)>,
    /// How many objects are stored.
    pub objects: usize,
}

/// A failure that the loop is backing off from.
#[derive(Clone, Debug)]
pub struct WatchFailure {
    /// What kind of failure.
    pub kind: ApiErrorKind,
    /// The error and its sources.
    pub message: String,
}

/// Where the loop notes how it fares. Cheap to clone; all clones are one note.
#[derive(Clone, Debug, Default)]
pub struct StatusReporter(Arc<Mutex<WatchStatus>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct WatchStatus {
    pub(crate) last_contact: Option<Instant>,
    pub(crate) failure: Option<WatchFailure>,
}

impl StatusReporter {
    /// The apiserver answered, or sent something. Returns whether something was wrong until now.
    pub(crate) fn record_contact(&self, now: Instant) -> bool {
        let mut status = self.0.lock();
        status.last_contact = Some(now);
        status.failure.take().is_some()
    }

    /// Something is wrong. Returns whether that is news: nothing was wrong before, or something of another kind.
    pub(crate) fn record_failure(&self, failure: WatchFailure) -> bool {
        let kind = failure.kind;
        let before = self.0.lock().failure.replace(failure);
        before.is_none_or(|before| before.kind != kind)
    }

    /// Why it does not make progress now, if it does not.
    pub fn failure(&self) -> Option<WatchFailure> {
        self.0.lock().failure.clone()
    }

    /// When the apiserver was last heard of.
    pub fn last_contact(&self) -> Option<Instant> {
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
    fn trouble_is_news_once_and_so_is_its_end() {
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
