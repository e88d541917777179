//! Carries out what follows from a change of the graph: queues objects, reports invalid references,
//! and times cascades.

use std::sync::atomic::Ordering;

use portreeve_garbagecollector_graph::{FollowUps, Graph, InvalidReason, InvalidReference};
use portreeve_reconcile::EventContent;
use portreeve_workqueue::Lane;
use tokio::time::Instant;

use super::CollectorContext;

impl CollectorContext {
    /// Changes the graph, and queues the work that follows.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Graph, &mut FollowUps) -> R) -> R {
        let mut follow_ups = FollowUps::default();
        let result = change(&mut self.graph.lock(), &mut follow_ups);
        self.enqueue(&mut follow_ups);
        result
    }

    /// Queues the work that follows from a change, and empties `follow_ups`.
    pub(super) fn enqueue(&self, follow_ups: &mut FollowUps) {
        let is_active = self.active.load(Ordering::Relaxed);
        if is_active {
            for uid in follow_ups.attempt.drain(..) {
                self.add(&self.attempts, uid, Lane::Urgent);
            }
            for uid in follow_ups.orphan.drain(..) {
                self.add(&self.orphans, uid, Lane::Urgent);
            }
            for invalid in follow_ups.invalid.drain(..) {
                self.report_invalid(&invalid);
            }
        }
        if !follow_ups.cascades_started.is_empty() || !follow_ups.cascades_finished.is_empty() {
            let now = Instant::now();
            let mut failures = self.failures.lock();
            for uid in follow_ups.cascades_started.drain(..) {
                failures.cascade_started(uid, now);
            }
            for uid in follow_ups.cascades_finished.drain(..) {
                if let Some(took) = failures.cascade_finished(uid, now) {
                    self.metrics.cascades.observe(took.as_secs_f64());
                }
            }
        }
        follow_ups.attempt.clear();
        follow_ups.orphan.clear();
        follow_ups.invalid.clear();
    }

    /// Reports an invalid reference with an event on its dependent.
    fn report_invalid(&self, invalid: &InvalidReference) {
        let InvalidReference {
            dependent,
            owner,
            reason,
        } = invalid;
        if *reason == InvalidReason::Coordinates {
            // Many are correct: they name another version of the owner.
            tracing::debug!(%dependent, %owner, "found an owner reference with other coordinates");
            return;
        }
        tracing::warn!(%dependent, %owner, "found an owner reference with a wrong namespace");
        let namespace = dependent.namespace.as_deref().unwrap_or_default();
        let sentence = format!("ownerRef {owner} does not exist in namespace {namespace:?}");
        self.note(
            dependent,
            &EventContent::warning("OwnerRefInvalidNamespace", "Collect", sentence).report_once(&*owner.uid),
        );
    }
}
