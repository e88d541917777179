//! The work queue between informers and workers. Keys can be added any number of times, and only
//! one worker holds a key at a time.
//!
//! The queue holds each waiting key once, in one of two lanes. A key that fails is retried after a
//! growing delay, and within a budget of retries. A key that is added while it runs is run once
//! more afterwards. The `core` module makes all of these decisions. This module wraps it with the
//! lock, the clock and the sleeping takers.
//!
//! Architecture Invariant: the lock is held for one call of the core and never across an await.
//! There are no tasks, channels or tickers here; an unused queue costs nothing.

mod backoff;
mod core;
#[cfg(test)]
#[cfg(loom)]
mod interleavings;
mod metrics;
mod sync;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

use std::{hash::Hash, pin::pin, sync::Arc, time::Duration};

use tokio::{task::coop, time::Instant};

use self::{
    backoff::Backoff,
    core::{Core, Run, Take, Wake},
    metrics::Series,
    sync::{Mutex, Notify, jitter, now, timeout_at},
};
pub use self::{
    core::{Flow, Lane, Outcome, Progress, QueueActivity, QueueSnapshot, RetryBudget, flow_of},
    metrics::{Metrics, UnqueuedWork},
};

/// A key that a queue can hold: small, and cheap to clone. Implemented for every type that
/// qualifies.
pub trait Key: Clone + Eq + Hash + Send + 'static {}

impl<K: Clone + Eq + Hash + Send + 'static> Key for K {}

/// A queue of keys. Clones are handles to the same queue.
///
/// The queue holds every key at most once, so it is bounded by the set of existing objects and
/// needs no capacity limit.
#[derive(Clone)]
pub struct Queue<K: Key> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    core: Mutex<Core<K>>,
    /// Wakes takers. [`Queue::take`] explains why no wake-up is lost.
    takers: Notify,
    /// Wakes callers that wait for the last run to end.
    drained: Notify,
    series: Series,
}

impl<K: Key> Queue<K> {
    /// Creates a queue whose metric series carry the given name in their `name` label.
    ///
    /// Two live queues with the same name share their series: the values are summed, except for the
    /// longest run, which is the maximum.
    pub fn new(name: &'static str, metrics: &Metrics) -> Self {
        Self::with_retry_budget(name, metrics, RetryBudget::default(), |_| 0)
    }

    /// Like [`Queue::new`], with a limit of retries. If retries have to wait for the budget, the
    /// flows that `flow_of` returns take turns, so that the failing keys of one flow do not delay
    /// the retries of another.
    ///
    /// Equal keys may have different flows. While a key is in the queue, its flow is that of the
    /// key that was added first.
    pub fn with_retry_budget(
        name: &'static str,
        metrics: &Metrics,
        budget: RetryBudget,
        flow_of: fn(&K) -> Flow,
    ) -> Self {
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(Backoff::DEFAULT, budget, flow_of)),
            takers: Notify::new(),
            drained: Notify::new(),
            series: metrics.series(name),
        });
        let observed = Arc::downgrade(&shared);
        let observe = |core: &mut Core<K>, now| (core.observe(now), core.retry_tokens(now));
        metrics.watch(name, Box::new(move || Some(observed.upgrade()?.with(observe))));
        Self { shared }
    }

    /// Makes the key ready now. A key that is already ready keeps its place, unless
    /// [`Lane::Urgent`] moves it up. A delayed key becomes ready at once, and a running key will
    /// run once more. Does nothing once the queue is closed.
    pub fn add(&self, key: K, lane: Lane) {
        let wake = self.shared.with(|core, now| core.add(key, lane, now));
        self.shared.wake(wake);
    }

    /// Makes the key ready at `when`, or now if `when` has passed. The earliest requested time
    /// applies, even if the key is in backoff.
    pub fn add_at(&self, key: K, when: Instant, lane: Lane) {
        let wake = self.shared.with(|core, now| core.add_at(key, when, lane, now));
        self.shared.wake(wake);
    }

    /// Makes the key ready now in the routine lane, unless its last run failed.
    ///
    /// Use it if nothing has changed: a failed key is retried anyway, within the retry budget.
    pub fn resync(&self, key: K) {
        let wake = self.shared.with(|core, now| core.resync(key, now));
        self.shared.wake(wake);
    }

    /// Makes every key ready that waits for the time of a [`Queue::add_at`] or [`Outcome::At`].
    /// Keys that wait only for a retry keep waiting.
    ///
    /// Call this after the wall clock was set, when times computed from it may be wrong. A worker
    /// that receives a key too early schedules it again.
    pub fn reschedule_now(&self) {
        let wake = self.shared.with(Core::reschedule_now);
        self.shared.wake(wake);
    }

    /// Ends the backoffs after [`Outcome::RetryUnavailable`], each after the time that `spread`
    /// returns, and shortens those of the current runs. The retries still need tokens of the retry
    /// budget.
    ///
    /// Call this when the apiserver is available again.
    pub fn end_outage(&self, spread: impl FnMut() -> Duration) {
        let wake = self.shared.with(|core, now| core.end_outage(spread, now));
        self.shared.wake(wake);
    }

    /// Waits for a ready key and takes it. Returns `None` once the queue is closed.
    ///
    /// Cancel safe: a dropped future has not taken anything. A future that is neither dropped nor
    /// polled may hold back a wake-up from another taker.
    pub async fn take(&self) -> Option<Work<K>> {
        // A worker whose reconciles never wait would otherwise starve the tasks that add keys.
        coop::consume_budget().await;
        let shared = &self.shared;
        loop {
            // A taker registers before it checks the core, so any key that becomes ready after the
            // check wakes this taker or an earlier one in the list. A taker may leave without using
            // its wake-up, because it was cancelled or its own check found a key. Dropping `woken`
            // then passes the wake-up to the next taker. Timers need no such hand-over: an earlier
            // time wakes all sleepers, and each sets its own timer.
            let mut woken = pin!(shared.takers.notified());
            woken.as_mut().enable();
            match shared.with(Core::take) {
                Take::Run(run) => return Some(Work::begin(self.clone(), run)),
                Take::Sleep(until) => drop(timeout_at(until, woken).await),
                Take::Idle => woken.await,
                Take::Closed => return None,
            }
        }
    }

    /// Closes the queue: waiting keys are dropped, takers receive `None`, and later adds do
    /// nothing. Work that was handed out can still finish.
    ///
    /// Unlike client-go's `ShutDown`, this does not hand out the keys that are ready, because the
    /// next leader starts with a list.
    pub fn close(&self) {
        let wake = self.shared.with(|core, _| core.close());
        self.shared.wake(wake);
    }

    /// Returns whether [`Queue::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.shared.core.lock().is_closed()
    }

    /// Waits until no key is running. Unless the queue is closed, new runs may start right after.
    pub async fn drained(&self) {
        loop {
            // Created before the check, so that no `notify_waiters` after the check is missed.
            let ended = self.shared.drained.notified();
            if self.shared.core.lock().is_drained() {
                return;
            }
            ended.await;
        }
    }

    /// Returns the current state of the queue, for gauges and tests.
    pub fn observe(&self) -> QueueSnapshot {
        self.shared.with(Core::observe)
    }

    /// Returns what the queue has to do, and what waits for its time. Linear in the number of keys.
    pub fn activity(&self) -> QueueActivity<K> {
        self.shared.with(Core::activity)
    }

    /// Returns whether and how the queue makes progress, for health checks.
    pub fn progress(&self) -> Progress<K> {
        self.shared.with(Core::progress)
    }
}

impl<K: Key> Shared<K> {
    /// Runs one step of the core. The clock is read under the lock, so that the core never sees it
    /// run backwards.
    fn with<R>(&self, step: impl FnOnce(&mut Core<K>, Instant) -> R) -> R {
        let mut core = self.core.lock();
        let result = step(&mut core, now());
        let tally = core.drain_tally();
        drop(core);
        self.series.count(tally);
        result
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::One => self.takers.notify_one(),
            Wake::All => self.takers.notify_waiters(),
        }
    }

    fn end(&self, key: &K, outcome: Outcome) {
        let (done, drained) = self.with(|core, now| (core.done(key, outcome, jitter(), now), core.is_drained()));
        if let Some(done) = done {
            self.series.worked(done.ran);
            self.wake(done.wake);
        }
        if drained {
            self.drained.notify_waiters();
        }
    }
}

/// A key that a worker has taken. No other worker receives it until [`Work::finish`].
///
/// Dropping it without `finish`, for example by a panic or cancellation, counts as
/// [`Outcome::Retry`].
#[must_use = "dropping work without finishing it is a failure"]
pub struct Work<K: Key> {
    queue: Queue<K>,
    key: K,
    lane: Lane,
    failures: u32,
    /// The outcome that the drop reports.
    outcome: Outcome,
}

impl<K: Key> Work<K> {
    fn begin(queue: Queue<K>, run: Run<K>) -> Self {
        let Run {
            key,
            lane,
            failures,
            waited,
        } = run;
        queue.shared.series.waited(waited);
        Self {
            queue,
            key,
            lane,
            failures,
            outcome: Outcome::Retry,
        }
    }

    /// Returns the key to work on.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns how many consecutive runs of this key failed before this one.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the lane from which the key was taken.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Reports progress of a run for [`Queue::progress`]. Call it in runs with many steps that may
    /// each be slow.
    pub fn report_progress(&self) {
        self.queue.shared.with(|core, now| core.report_progress(&self.key, now));
    }

    /// Charges a failed retry for writes besides the first, such as those that report the failure:
    /// each of them costs a token of the [`RetryBudget`] too. Has no effect on other runs.
    pub fn charge(&self, writes: u32) {
        self.queue.shared.with(|core, now| core.charge(&self.key, writes, now));
    }

    /// Ends the run with this outcome and returns the key to the queue.
    pub fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl<K: Key> Drop for Work<K> {
    fn drop(&mut self) {
        self.queue.shared.end(&self.key, self.outcome);
    }
}
