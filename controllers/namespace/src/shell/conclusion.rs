//! What follows from the end of an attempt: what is known of the namespace, when it is attempted
//! again, and a report if that takes too long.

use std::{sync::Arc, time::Duration};

use portreeve_reconcile::{EventContent, Target};
use portreeve_workqueue::Outcome;
use tokio::time::Instant;

use super::{
    NamespaceContext,
    attempt::End,
    other_manager::{Holder, yielded},
    requests::NAMESPACES,
    tracked::Progress,
};

/// The minimum delay after an attempt that could not read or delete everything. It lists every
/// resource, so it is not repeated as soon as a single request would be.
const MIN_RETRY: Duration = Duration::from_secs(1);
/// How often the Lease of another manager is read.
const RECHECK: Duration = Duration::from_secs(15);

impl NamespaceContext {
    /// Records the end of an attempt.
    pub(super) fn conclude(&self, name: &Arc<str>, uid: &str, end: End) -> Outcome {
        let now = self.clock.now();
        let record = |state| self.tracked.update(name, uid, |tracked| tracked.state = state);
        match end {
            End::Done => {
                self.watches.wait_for(name, &[]);
                // Others may hold the namespace by a finalizer of their own.
                let held = self.tracked.get(name).filter(|tracked| *tracked.uid == *uid);
                let report = held.map(|tracked| tracked.since + self.settings.stuck_after);
                let report = report.filter(|report| *report > Instant::now());
                report.map_or(Outcome::Forget, Outcome::At)
            }
            End::Again => Outcome::Retry,
            End::Held(until) => {
                record(Progress::Held(now));
                Outcome::At(until)
            }
            End::Yielded(Holder { identity, until }) => {
                tracing::debug!(namespace = %name, holder = %identity, "left a namespace to kube-controller-manager");
                record(Progress::Yielded(identity));
                // It may release the Lease sooner.
                Outcome::At(until.min(Instant::now() + RECHECK))
            }
            End::Failed(error) => {
                tracing::debug!(namespace = %name, reason = %error, "retrying failed attempt");
                record(Progress::Failed(now, error.to_string()));
                error.outcome(&self.outage)
            }
            End::Remaining(findings, delay, served) => {
                let findings = Arc::new(findings);
                let mut wait = None;
                self.tracked.update(name, uid, |tracked| {
                    let is_current = self
                        .served
                        .borrow()
                        .as_ref()
                        .is_some_and(|now| Arc::ptr_eq(now, &served));
                    wait = tracked.record(now, &findings, is_current);
                });
                match wait {
                    Some(wait) => Outcome::At(self.next_attempt(name, wait)),
                    None => Outcome::RetryAfter(MIN_RETRY.max(delay)),
                }
            }
        }
    }

    /// Returns the time of the next attempt if nothing happens: after `wait`, but no later than
    /// there is something to say.
    fn next_attempt(&self, name: &str, wait: Duration) -> Instant {
        let now = Instant::now();
        let mut next = now + wait;
        if let Some(tracked) = self.tracked.get(name) {
            for limit in [self.details_after(), self.settings.stuck_after] {
                let then = tracked.since + limit;
                if then > now {
                    next = next.min(then);
                }
            }
        }
        next
    }

    /// Reports a namespace that is not gone after the time for it: once, by an event and a line of
    /// the log.
    pub(super) fn report_stuck(&self, name: &str) {
        let Some(tracked) = self.tracked.get(name) else { return };
        if tracked.is_reported || tracked.since.elapsed() < self.settings.stuck_after {
            return;
        }
        let why = match &tracked.state {
            Progress::Remaining(_, findings) => findings.summary(),
            Progress::Failed(_, why) => why.clone(),
            Progress::Yielded(holder) => yielded(holder),
            Progress::Held(_) | Progress::Started => "it is being deleted".to_owned(),
            Progress::Protected => "this controller never touches it".to_owned(),
            Progress::Finalized => "others have not removed their finalizers from the namespace".to_owned(),
        };
        tracing::warn!(namespace = %name, reason = why, "namespace is still being deleted");
        let target = Target {
            resource: NAMESPACES,
            key: portreeve_api::ObjectKey::cluster(name),
            uid: Arc::clone(&tracked.uid),
            version: "".into(),
        };
        let message = format!("The namespace is still being deleted: {why}");
        if !self.settings.observe {
            let event = EventContent::warning("NamespaceDeletionStuck", "Delete", message);
            self.events.send(self.name, &target, &event);
        }
        self.tracked
            .update(name, &tracked.uid, |tracked| tracked.is_reported = true);
    }
}
