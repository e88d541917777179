//! One key at a time: observe, decide, apply, and tell the queue how it went.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use portreeve_client::{FENCED_BY_SERVER, error_chain};
use portreeve_workqueue::{Lane, Outcome, Queue, Work};
use tokio::time::Instant;
use tracing::Instrument;

use crate::{
    Clock, Effect, Metrics, Next, Plan,
    apply::{Applied, Applier},
};

/// The part that differs from controller to controller. Level-triggered: the key is all the input there is.
pub trait Reconciler: Send + Sync + 'static {
    /// Everything that a decision is based on.
    type Observed: Send + Sync;

    /// Reads caches; `None` when there is nothing to decide on. Sync, so it cannot do I/O.
    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed>;

    /// Decides what to do. Pure: the same sight at the same time is the same plan, and once the plan is carried out and seen, the
    /// next one is empty.
    fn decide(&self, seen: &Self::Observed, now: Timestamp) -> Plan;

    /// Decides what to say about an effect that was refused and that only people can cure, or that has failed again and again: a
    /// condition and an event, and whatever else does not depend on it. Pure, and like `decide` empty once it has been said. The refused plan itself is tried again
    /// without being asked for.
    fn refused(&self, _seen: &Self::Observed, _effect: &Effect, _why: &str, _now: Timestamp) -> Plan {
        Plan::nothing()
    }
}

/// A cache is behind for milliseconds. A plan that is stale this many times in a row has another cause, and is told.
const STALE_TOO_OFTEN: u32 = 8;
/// What fails this many times in a row, over a second or more, is told of like a refusal.
const FAILED_TOO_OFTEN: u32 = 8;

/// After this many failures in a row, which take ten seconds, the apiserver's fence is not behind any more: it does not follow the Lease.
const FENCED_TOO_OFTEN: u32 = 11;

pub(crate) struct Worker<R> {
    pub(crate) name: &'static str,
    pub(crate) reconciler: Arc<R>,
    pub(crate) applier: Applier,
    pub(crate) queue: Queue<ObjectKey>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) refusals: Refusals,
}

/// What was refused last, by key: each refusal is logged once, not at each try.
///
/// Bounded by the keys that are refused now: an entry goes when its key succeeds or is gone.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<HashMap<ObjectKey, String>>);

impl Refusals {
    /// Whether this refusal is news.
    fn is_new(&self, key: &ObjectKey, text: &str) -> bool {
        let before = self.0.lock().insert(key.clone(), text.to_owned());
        before.as_deref() != Some(text)
    }

    fn clear(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

/// How a reconcile went, as `controller_runtime_reconcile_total` has it.
#[derive(Clone, Copy)]
enum ReconcileResult {
    Success,
    Error,
    Requeue,
    RequeueAfter,
}

impl ReconcileResult {
    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Requeue => "requeue",
            Self::RequeueAfter => "requeue_after",
        }
    }
}

impl<R: Reconciler> Worker<R> {
    /// Works until the queue is closed.
    pub(crate) async fn run(self: Arc<Self>) {
        let active = self.metrics.active.with_label_values(&[self.name]);
        while let Some(work) = self.queue.take().await {
            active.inc();
            let started = Instant::now();
            let span = tracing::info_span!("reconcile", controller = self.name, object = %work.key());
            // Nothing outlives the panic but locks, and those do not poison: the item is simply tried again.
            let reconcile = AssertUnwindSafe(self.reconcile(&work).instrument(span)).catch_unwind();
            let (outcome, result) = reconcile.await.unwrap_or_else(|panic| {
                self.metrics.panics.with_label_values(&[self.name]).inc();
                let message = panic_message(&*panic);
                tracing::error!(controller = self.name, object = %work.key(), err = message, "a reconcile panicked");
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
        let Some(seen) = self.reconciler.observe(key) else {
            self.refusals.clear(key);
            return (Outcome::Forget, ReconcileResult::Success);
        };
        let plan = self.reconciler.decide(&seen, now);
        if !plan.effects.is_empty() {
            let message = if self.applier.dry_run {
                "dry run: would do"
            } else {
                "decided"
            };
            tracing::info!(%plan, "{message}");
        }
        // A plan of many effects takes its time with a slow apiserver, and is not stuck.
        let applied = self.applier.run_with_progress(&plan, || work.report_progress()).await;
        if !matches!(applied, Applied::Done) {
            self.keep_the_time(key, plan.next);
        }
        match applied {
            Applied::Done => {
                self.refusals.clear(key);
                // Applying took time: what is left of the wait is counted from here.
                after(plan.next, self.clock.now())
            }
            Applied::Stale(error) if failures >= STALE_TOO_OFTEN => {
                let err = error_chain(&error);
                tracing::warn!(err, failures, "decided on a stale cache again and again, trying on");
                (Outcome::Retry, ReconcileResult::Error)
            }
            Applied::Stale(error) => {
                tracing::debug!(err = error_chain(&error), "the cache was behind, looking again");
                (Outcome::Retry, ReconcileResult::Requeue)
            }
            Applied::Failed { error, after } => {
                let why = error_chain(&error);
                tracing::warn!(err = why, "failed, trying again");
                if failures == FENCED_TOO_OFTEN && why.contains(FENCED_BY_SERVER) {
                    tracing::error!(
                        "this replica leads, and the apiserver's fence refuses it: it does not follow the Lease. Set its action to \
                         Audit and restart the kube-apiservers (docs/deploying.md)"
                    );
                }
                if failures >= FAILED_TOO_OFTEN {
                    let said = self.reconciler.refused(&seen, &error.effect, &why, now);
                    self.applier.run_with_progress(&said, || work.report_progress()).await;
                }
                (Outcome::RetryAfter(after), ReconcileResult::Error)
            }
            Applied::Refused(error) => {
                let why = error_chain(&error);
                self.note_refusal(key, &why);
                // Said as well as it can be: what is refused may be the saying itself.
                let said = self.reconciler.refused(&seen, &error.effect, &why, now);
                self.applier.run_with_progress(&said, || work.report_progress()).await;
                (Outcome::Retry, ReconcileResult::Error)
            }
        }
    }

    /// A plan that failed is tried again with backoff, but what is due in the meantime is due.
    fn keep_the_time(&self, key: &ObjectKey, next: Next) {
        let Next::At(time) = next else { return };
        if let Ok(wait) = Duration::try_from(time.duration_since(self.clock.now())) {
            self.queue.add_at(key.clone(), Instant::now() + wait, Lane::Urgent);
        }
    }

    fn note_refusal(&self, key: &ObjectKey, why: &str) {
        self.metrics.terminal_errors.with_label_values(&[self.name]).inc();
        if self.refusals.is_new(key, why) {
            tracing::error!(
                err = why,
                "refused by the apiserver; trying again with backoff, at least each 30s"
            );
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

/// How a plan that succeeded ends its item.
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
