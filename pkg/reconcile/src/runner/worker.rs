//! Reconciles one key at a time: observes, decides, applies, and reports the outcome to the queue.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use jiff::Timestamp;
use portreeve_api::ObjectKey;
use portreeve_client::{Outage, error_chain};
use portreeve_workqueue::{Lane, Outcome, Queue, Work};
use tokio::time::Instant;
use tracing::{Instrument, Level};

use super::{
    conflicts::Conflicts,
    failure_log::{Due, FailureLog},
    own_writes::OwnWrites,
    sync_metrics::SyncMetrics,
};
use crate::{
    Applied, Applier, Clock, Effect, EffectError, Metrics, Next, Plan, Reconciler, apply::Progress, reconcile_span,
};

/// A cache is usually stale for milliseconds. A plan that is stale this many times in a row has
/// another cause and is logged as a warning.
const STALE_TOO_OFTEN: u32 = 8;
/// An effect that fails this many times in a row is reported like a rejection. With the backoff,
/// that takes at least half a second.
const FAILED_TOO_OFTEN: u32 = 8;
/// An effect whose failure takes this long is reported the first time, if the apiserver itself
/// reports an internal error. For example, it waits for a conversion webhook for 30 s, and many
/// times that would delay everything that does not depend on the effect.
const FAILED_TOO_SLOWLY: Duration = Duration::from_secs(10);

pub(super) struct Worker<R> {
    pub(super) name: &'static str,
    pub(super) reconciler: Arc<R>,
    pub(super) applier: Applier,
    pub(super) queue: Queue<ObjectKey>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    pub(super) outage: Outage,
    pub(super) failures: FailureLog,
    pub(super) conflicts: Conflicts,
    pub(super) sync_metrics: Option<SyncMetrics>,
    pub(super) own_writes: Arc<OwnWrites>,
}

/// The result of a reconcile, as labeled in `controller_runtime_reconcile_total`.
#[derive(Clone, Copy)]
pub(super) enum ReconcileResult {
    Success,
    Error,
    Requeue,
    RequeueAfter,
}

impl ReconcileResult {
    pub(super) const LABELS: [&str; 4] = [
        Self::Success.label(),
        Self::Error.label(),
        Self::Requeue.label(),
        Self::RequeueAfter.label(),
    ];

    const fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        }
    }
}

impl<R: Reconciler> Worker<R> {
    /// Runs until the queue is closed.
    pub(super) async fn run(self: Arc<Self>) {
        let active = self.metrics.active.with_label_values(&[self.name]);
        while let Some(work) = self.queue.take().await {
            active.inc();
            let started = Instant::now();
            let span = reconcile_span(self.name, work.key());
            // Only locks are shared with the panicked future, and they do not poison, so the item
            // can simply be retried.
            let reconcile = AssertUnwindSafe(self.reconcile(&work).instrument(span.clone())).catch_unwind();
            let (outcome, result) = reconcile.await.unwrap_or_else(|panic| {
                self.metrics.panics.with_label_values(&[self.name]).inc();
                let message = panic_message(&*panic);
                span.in_scope(|| {
                    self.log_failure(
                        Level::ERROR,
                        work.key(),
                        &message,
                        "recovered from a panic in a reconcile",
                    );
                });
                (Outcome::Retry, ReconcileResult::Error)
            });
            work.finish(outcome);
            self.count(result, started);
            active.dec();
        }
    }

    async fn reconcile(&self, work: &Work<ObjectKey>) -> (Outcome, ReconcileResult) {
        let (key, failures) = (work.key(), work.failures());
        let now = self.clock.now();
        // From here on, the run observes every change that precedes a new patch.
        self.own_writes.forget(key);
        let Some(observed) = self.reconciler.observe(key) else {
            self.failures.clear(key);
            self.conflicts.clear(key);
            return (Outcome::Forget, ReconcileResult::Success);
        };
        let plan = self.reconciler.decide(&observed, now);
        if !plan.effects.is_empty() {
            self.log_plan(key, &plan.to_string());
        }
        let is_outdated = AtomicBool::new(false);
        let observe = |progress: Progress<'_>| {
            let is_changed = self.observe_progress(work, &observed, progress);
            is_outdated.fetch_or(is_changed, Ordering::Relaxed);
            is_changed
        };
        let applied = self.apply(&plan, observe).await;
        if !matches!(applied, Applied::Done) {
            self.keep_the_time(key, plan.next);
        } else if is_outdated.into_inner() {
            // Urgent work goes first: with many keys due at once, all of them act before any
            // decides again.
            self.queue.add(key.clone(), Lane::Routine);
        }
        match self.conflicts.judge(key, applied, Instant::now()) {
            Applied::Done => {
                self.failures.clear(key);
                // Applying took time, so the remaining wait is computed from the current time.
                after(plan.next, self.clock.now())
            }
            Applied::Stale(error) if failures >= STALE_TOO_OFTEN => {
                let err = error_chain(&error);
                self.log_failure(Level::WARN, key, &err, "retrying a plan that is repeatedly stale");
                (Outcome::Retry, ReconcileResult::Error)
            }
            Applied::Stale(error) => {
                tracing::debug!(err = error_chain(&error), "retrying after a stale cache");
                (Outcome::Retry, ReconcileResult::Requeue)
            }
            Applied::Failed { error, after, took } => {
                let why = error_chain(&error);
                self.log_failure(Level::WARN, key, &why, "retrying failed plan");
                if self.is_lasting(failures, &error, took) {
                    self.report(work, &error.effect, &why).await;
                }
                let outcome = if after.is_zero() && error.is_unavailable() {
                    Outcome::RetryUnavailable(self.outage.min_wait())
                } else {
                    Outcome::RetryAfter(after)
                };
                (outcome, ReconcileResult::Error)
            }
            Applied::Refused(error) => {
                let why = error_chain(&error);
                self.note_rejection(key, &why);
                self.report(work, &error.effect, &why).await;
                (Outcome::Retry, ReconcileResult::Error)
            }
        }
    }

    async fn apply(&self, plan: &Plan, observe: impl Fn(Progress<'_>) -> bool + Send + Sync) -> Applied {
        let started = Instant::now();
        let applied = self.applier.run_with_progress(plan, observe).await;
        if let Some(metrics) = &self.sync_metrics {
            metrics.observe(&applied, started.elapsed());
        }
        applied
    }

    /// Observes the progress of a plan. Returns whether the reconciler now remembers another state
    /// than the one that the plan was based on.
    fn observe_progress(&self, work: &Work<ObjectKey>, observed: &R::Observed, progress: Progress<'_>) -> bool {
        match progress {
            Progress::Request(effect, state) => self.reconciler.observe_request(observed, effect, state),
            Progress::Ended => {
                // A plan with many effects is slow on a slow apiserver, so each effect reports
                // progress.
                work.report_progress();
                false
            }
        }
    }

    /// Returns whether a failure is reported.
    fn is_lasting(&self, failures: u32, error: &EffectError, took: Duration) -> bool {
        let is_slow = error.is_internal() && took >= FAILED_TOO_SLOWLY;
        // During an outage, the report would fail too, and cost a token of the retry budget.
        (failures >= FAILED_TOO_OFTEN || is_slow) && !self.outage.is_outage()
    }

    /// Reports a failed effect as the reconciler decides. The failed plan is retried in any case,
    /// so a failure of the report is only logged. If it lasts, it is also sent as an event.
    async fn report(&self, work: &Work<ObjectKey>, effect: &Effect, why: &str) {
        let key = work.key();
        let Some((observed, report)) = self.decide_report(key, effect, why) else {
            return;
        };
        match self.run_report(work, &observed, &report).await {
            Applied::Done => {}
            Applied::Stale(error) => tracing::debug!(err = error_chain(&error), "the report of a failure is stale"),
            Applied::Failed { error, took, .. } => {
                let why = error_chain(&error);
                self.log_failure(Level::WARN, key, &why, "failed to report a failure");
                if self.is_lasting(work.failures(), &error, took) {
                    self.report_by_events(work, &error.effect, &why).await;
                }
            }
            Applied::Refused(error) => {
                let why = error_chain(&error);
                self.note_rejection(key, &why);
                self.report_by_events(work, &error.effect, &why).await;
            }
        }
    }

    /// Sends the events about an effect of a report.
    async fn report_by_events(&self, work: &Work<ObjectKey>, effect: &Effect, why: &str) {
        if let Some((observed, report)) = self.decide_report(work.key(), effect, why) {
            self.run_report(work, &observed, &report.into_one_time_events()).await;
        }
    }

    /// Returns the plan that reports a failed effect. The effect may have taken long, so the plan
    /// is based on the current state, which is returned as well. Returns `None` if the object is
    /// gone.
    fn decide_report(&self, key: &ObjectKey, effect: &Effect, why: &str) -> Option<(R::Observed, Plan)> {
        let observed = self.reconciler.observe(key)?;
        let report = self.reconciler.refused(&observed, effect, why, self.clock.now());
        Some((observed, report))
    }

    /// Runs a plan that reports a failure. The watch event of its status patch runs the key again
    /// only after the backoff.
    async fn run_report(&self, work: &Work<ObjectKey>, observed: &R::Observed, report: &Plan) -> Applied {
        let key = work.key();
        let mut targets = report.effects.iter().filter_map(Effect::status_target);
        let target = targets.find(|target| target.key == *key);
        if let Some(target) = target {
            self.own_writes.begin(key, &target.uid);
        }
        let observe = |progress: Progress<'_>| self.observe_progress(work, observed, progress);
        let (applied, written) = self.applier.report(report, observe).await;
        work.charge(written.writes);
        if target.is_some()
            && let Some(lane) = self.own_writes.end(key, written.status_version.as_deref())
        {
            self.queue.add(key.clone(), lane);
        }
        applied
    }

    /// Queues the key at the plan's next time. A failed plan is retried with backoff, which must
    /// not delay what is due in the meantime.
    fn keep_the_time(&self, key: &ObjectKey, next: Next) {
        let Next::At(time) = next else { return };
        // The time may have passed while an effect was failing.
        let wait = Duration::try_from(time.duration_since(self.clock.now())).unwrap_or_default();
        self.queue.add_at(key.clone(), Instant::now() + wait, Lane::Urgent);
    }

    fn note_rejection(&self, key: &ObjectKey, why: &str) {
        self.metrics.terminal_errors.with_label_values(&[self.name]).inc();
        self.log_failure(
            Level::ERROR,
            key,
            why,
            "rejected by the apiserver; retrying with backoff",
        );
    }

    /// Logs a plan, at debug if it is a retry with the effects of the one before. The next time
    /// may differ at each retry.
    fn log_plan(&self, key: &ObjectKey, plan: &str) {
        let effects = plan.split_once("; again at ").map_or(plan, |(effects, _)| effects);
        let message = if self.applier.dry_run {
            "dry run: would do"
        } else {
            "decided"
        };
        if self.failures.is_repeated(key, effects) {
            tracing::debug!(plan, "{message}");
        } else {
            tracing::info!(plan, "{message}");
        }
    }

    /// Logs a failure of an object, at debug if the last line about the object is recent.
    fn log_failure(&self, level: Level, key: &ObjectKey, err: &str, message: &'static str) {
        match self.failures.record(key, err, Instant::now()) {
            Some(Due { suppressed }) if level == Level::ERROR => tracing::error!(err, suppressed, "{message}"),
            Some(Due { suppressed }) => tracing::warn!(err, suppressed, "{message}"),
            None => tracing::debug!(err, "{message}"),
        }
    }

    fn count(&self, result: ReconcileResult, started: Instant) {
        let seconds = started.elapsed().as_secs_f64();
        self.metrics.seconds.with_label_values(&[self.name]).observe(seconds);
        self.metrics.total.with_label_values(&[self.name, result.label()]).inc();
        if matches!(result, ReconcileResult::Error) {
            self.metrics.errors.with_label_values(&[self.name]).inc();
        }
    }
}

/// Returns the outcome of an item whose plan succeeded.
fn after(next: Next, now: Timestamp) -> (Outcome, ReconcileResult) {
    match next {
        Next::OnChange => (Outcome::Forget, ReconcileResult::Success),
        Next::At(time) => {
            let wait = time.duration_since(now).try_into().unwrap_or_default();
            (Outcome::At(Instant::now() + wait), ReconcileResult::RequeueAfter)
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

#[cfg(test)]
mod tests;
