//! The work queue between informers and workers: keys go in as often as they like and come out one holder at a time.
//!
//! Keys that wait are held once, in two lanes; a key that fails comes back after a growing delay; a key that is added
//! while it runs runs once more. `core` decides all of that. This module is the shell around it: it owns the lock, the
//! clock, and the sleep of the takers.
//!
//! Architecture Invariant: the lock is held for one call of the core and never across an await. There is no task, no
//! channel and no ticker here; a queue that is not used costs nothing.

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

use std::{hash::Hash, pin::pin, sync::Arc};

use tokio::{task::coop, time::Instant};

use self::{
    backoff::Backoff,
    core::{Core, Run, Take, Wake},
    metrics::Series,
    sync::{Mutex, Notify, now, timeout_at},
};
pub use self::{
    core::{Lane, Outcome, Progress, QueueSnapshot},
    metrics::{Metrics, UnqueuedWork},
};

/// What a queue can carry: small, and cheap to clone. Implemented for everything that qualifies.
pub trait Key: Clone + Eq + Hash + Send + 'static {}

impl<K: Clone + Eq + Hash + Send + 'static> Key for K {}

/// A queue of keys. Clones are handles of the same queue.
///
/// The queue holds every key at most once, so it needs no bound of its own: it is no longer than the set of objects
/// that exist.
#[derive(Clone)]
pub struct Queue<K: Key> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    core: Mutex<Core<K>>,
    /// Wakes takers. See [`Queue::take`] for why no wake-up is lost.
    takers: Notify,
    /// Wakes those who wait for the last run to end.
    drained: Notify,
    series: Series,
}

impl<K: Key> Queue<K> {
    /// Makes a queue whose series carry `name` in the label of that name.
    ///
    /// Two live queues of one name share their series: sums, and the longest of the longest running.
    pub fn new(name: &'static str, metrics: &Metrics) -> Self {
        let shared = Arc::new(Shared {
            core: Mutex::new(Core::new(Backoff::DEFAULT)),
            takers: Notify::new(),
            drained: Notify::new(),
            series: metrics.series(name),
        });
        let observed = Arc::downgrade(&shared);
        metrics.watch(name, Box::new(move || Some(observed.upgrade()?.observe())));
        Self { shared }
    }

    /// Wants the key now. Nothing happens when it is ready already, except that [`Lane::Urgent`] moves it up; a key
    /// that waits for its time becomes ready; a key that runs will run once more. Dropped silently once the queue is
    /// closed.
    pub fn add(&self, key: K, lane: Lane) {
        let wake = self.shared.with(|core, now| core.add(key, lane, now));
        self.shared.wake(wake);
    }

    /// Wants the key at `when`, or now if that has passed. Of several times the earliest wins, also against a backoff
    /// that is running.
    pub fn add_at(&self, key: K, when: Instant, lane: Lane) {
        let wake = self.shared.with(|core, now| core.add_at(key, when, lane, now));
        self.shared.wake(wake);
    }

    /// Makes ready every key that waits for a time, of [`Queue::add_at`] or [`Outcome::At`]. Keys in backoff go on waiting.
    ///
    /// For times that were named by a clock which somebody has set: whoever gets a key too early asks for its time again.
    pub fn reschedule_now(&self) {
        let wake = self.shared.with(Core::reschedule_now);
        self.shared.wake(wake);
    }

    /// Waits for a key that is ready, and takes it. `None` once the queue is closed.
    ///
    /// Cancel safe: a dropped future has taken nothing. While it is neither dropped nor polled it may hold up a wake-up
    /// that another taker could have used.
    pub async fn take(&self) -> Option<Work<K>> {
        // Workers whose reconciles never wait would otherwise keep their thread from the tasks that add.
        coop::consume_budget().await;
        let shared = &self.shared;
        loop {
            // A taker enlists before it looks, so that whatever becomes ready after the look wakes somebody: this
            // taker, or one before it in the list. A taker that leaves with a wake-up which it did not need (cancelled,
            // or served by its own look) hands it on to the next when `woken` is dropped. Times need no such care: a
            // nearer one wakes every sleeper, so each keeps the time by itself.
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

    /// Ends the queue: everything that waits is dropped, takers get `None`, later adds do nothing. Work that was handed
    /// out can still finish.
    ///
    /// Unlike client-go's `ShutDown` it does not hand out what is ready: whoever starts next begins with a list.
    pub fn close(&self) {
        let wake = self.shared.with(|core, _| core.close());
        self.shared.wake(wake);
    }

    /// Whether [`Queue::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.shared.core.lock().is_closed()
    }

    /// Resolves when no work is held by anyone. Only after [`Queue::close`] does it stay that way.
    pub async fn drained(&self) {
        loop {
            // Made before the look: it sees every `notify_waiters` from here on.
            let ended = self.shared.drained.notified();
            if self.shared.core.lock().is_drained() {
                return;
            }
            ended.await;
        }
    }

    /// The queue as it is now, for gauges and tests.
    pub fn observe(&self) -> QueueSnapshot {
        self.shared.observe()
    }

    /// Whether the queue moves, for health checks.
    pub fn progress(&self) -> Progress<K> {
        self.shared.with(Core::progress)
    }
}

impl<K: Key> Shared<K> {
    /// One step of the core. The clock is read under the lock, so that the core never sees it run backwards.
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
        let (done, drained) = self.with(|core, now| (core.done(key, outcome, now), core.is_drained()));
        if let Some(done) = done {
            self.series.worked(done.ran);
            self.wake(done.wake);
        }
        if drained {
            self.drained.notify_waiters();
        }
    }

    fn observe(&self) -> QueueSnapshot {
        self.with(Core::observe)
    }
}

/// A key that only this holder works on, until [`Work::finish`].
///
/// Dropped without that, as by a reconcile that panics or is cancelled, it counts as [`Outcome::Retry`].
#[must_use = "dropping work without finishing it is a failure"]
pub struct Work<K: Key> {
    queue: Queue<K>,
    key: K,
    lane: Lane,
    failures: u32,
    /// What the drop reports.
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

    /// What to work on.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// How many runs of this key in a row have failed before this one.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The lane from which the key was taken.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// Says that the run has come further, for [`Queue::progress`]. For runs of many parts, each of which may take its time.
    pub fn report_progress(&self) {
        self.queue.shared.with(|core, now| core.report_progress(&self.key, now));
    }

    /// Gives the key back.
    pub fn finish(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl<K: Key> Drop for Work<K> {
    fn drop(&mut self) {
        self.queue.shared.end(&self.key, self.outcome);
    }
}
