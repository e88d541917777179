//! Events about failures to change objects.

use portreeve_client::ApiErrorKind;
use portreeve_garbagecollector_graph::Identity;
use portreeve_reconcile::EventContent;
use portreeve_workqueue::Work;

use super::{CollectorContext, failures::Task, queued_object::QueuedObject, requests::RequestError};

/// Returns whether the apiserver has rejected the request, so that somebody has to act.
pub(super) fn is_rejected(failure: &RequestError) -> bool {
    let kind = match failure {
        RequestError::Other { kind, .. } => *kind,
        RequestError::NotFound | RequestError::Conflict | RequestError::Reported(_) => return false,
    };
    matches!(kind, ApiErrorKind::Forbidden | ApiErrorKind::Invalid)
}

impl CollectorContext {
    /// Reports a failure by an event on an object: at once if the apiserver has rejected a request,
    /// and otherwise when the attempts of `task` have failed for 30 s. `purpose` says what the
    /// request was sent for.
    pub(super) fn report_failure(
        &self,
        work: &Work<QueuedObject>,
        item: &Identity,
        purpose: &str,
        task: Task,
        failure: &RequestError,
    ) {
        let RequestError::Other { is_unavailable, .. } = failure else {
            return;
        };
        if is_rejected(failure) {
            self.report_refusal(work, item, purpose, failure);
        } else if self.has_failed_long(task) && !(*is_unavailable && self.outage.is_outage()) {
            self.report_lasting_failure(work, item, purpose, failure);
        }
    }

    /// Reports a request that the apiserver has rejected, once for each object and message.
    pub(super) fn report_refusal(
        &self,
        work: &Work<QueuedObject>,
        item: &Identity,
        purpose: &str,
        failure: &RequestError,
    ) {
        let message = failure.to_string();
        let sentence = format!("The apiserver rejected a request of the garbage collector {purpose}: {message}");
        let note = EventContent::warning("GarbageCollectionRefused", "Collect", sentence);
        if self.note(item, &note.report_once(message.clone())) {
            tracing::warn!(%item, reason = message, "failed to change object: the apiserver rejected the request");
            work.charge(1);
        }
    }

    /// Reports an object that could not be changed for a long time.
    fn report_lasting_failure(
        &self,
        work: &Work<QueuedObject>,
        item: &Identity,
        purpose: &str,
        failure: &RequestError,
    ) {
        let message = failure.to_string();
        let sentence = format!("Requests of the garbage collector {purpose} have failed for 30 s: {message}");
        let note = EventContent::warning("GarbageCollectionFailed", "Collect", sentence);
        // Messages may differ in each attempt, so one event for each object is enough.
        if self.note(item, &note.report_once("lasting failure".to_owned())) {
            tracing::warn!(%item, reason = message, "failed to change object for 30 s; retrying with backoff");
            work.charge(1);
        }
    }
}
