//! A controller that consists of a reconciler, a queue and workers.

mod conflicts;
mod enqueue_gate;
mod failure_log;
mod own_writes;
mod sync_metrics;
mod worker;

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    future::{BoxFuture, join, join_all},
};
use portreeve_api::ObjectKey;
use portreeve_client::Outage;
use portreeve_informer::{CacheSyncTimeout, Cause, Change, Delta, Informer, Projection, Subscription};
use portreeve_workqueue::{Lane, Queue, flow_of};
use tokio::task::JoinSet;

use self::{
    conflicts::Conflicts,
    enqueue_gate::EnqueueGate,
    failure_log::FailureLog,
    own_writes::OwnWrites,
    sync_metrics::SyncMetrics,
    worker::{ReconcileResult, Worker},
};
use crate::{
    Activity, ActivityChecker, Applier, BuildError, Context, Controller, ControllerFailure, ControllerMetrics,
    FenceMonitor, QueueHealthChecker, Reconciler, Registrations, RootCa, SharedContext, Shutdown, held_retries_checker,
    retry_after_outages,
};

/// How long to wait for caches before logging it. The wait then continues.
const SYNC_NOTICE: Duration = Duration::from_secs(30);

/// Builds a controller that reconciles keys.
pub struct KeyedController<R> {
    name: &'static str,
    queue_name: &'static str,
    queue: Queue<ObjectKey>,
    gate: Arc<EnqueueGate>,
    own_writes: Arc<OwnWrites>,
    reconciler: Arc<R>,
    applier: Applier,
    conflicts: Conflicts,
    sync_metrics: Option<SyncMetrics>,
    shared: SharedContext,
    workers: usize,
    syncs: Vec<Synced>,
    subscriptions: Vec<Subscription>,
    followed: Vec<(RootCa, KeysOfChange)>,
}

/// Returns the keys that a change of a CA affects.
type KeysOfChange = Box<dyn Fn() -> Vec<ObjectKey> + Send + Sync>;
type Synced = Box<dyn Fn() -> BoxFuture<'static, Result<(), CacheSyncTimeout>> + Send + Sync>;

impl<R: Reconciler> KeyedController<R> {
    /// Starts building a controller. `queue_name` is the name of its work queue in metrics.
    pub fn new(ctx: &Context<'_>, queue_name: &'static str, reconciler: R) -> Self {
        let shared = ctx.shared.clone();
        // The keys of one namespace share the retries.
        let flow = |key: &ObjectKey| flow_of(&key.namespace);
        let queue = Queue::with_retry_budget(queue_name, &shared.queues, shared.retry_budget, flow);
        let reconciler = Arc::new(reconciler);
        let observing = Arc::clone(&reconciler);
        let gate = EnqueueGate::new(queue.clone(), move |key| observing.observe(key).is_some());
        Self {
            name: ctx.name,
            queue_name,
            queue,
            gate: Arc::new(gate),
            own_writes: Arc::default(),
            reconciler,
            applier: Applier {
                client: ctx.client.clone(),
                events: shared.events.clone(),
                manager: ctx.name.to_owned(),
                dry_run: shared.dry_run,
                controller_metrics: ControllerMetrics::default(),
                clock: Arc::clone(&shared.clock),
                fence_monitor: FenceMonitor::new(ctx),
            },
            conflicts: Conflicts::new(ctx.informers.stale_signal()),
            sync_metrics: None,
            shared,
            workers: 1,
            syncs: Vec::new(),
            subscriptions: Vec::new(),
            followed: Vec::new(),
        }
    }

    /// Sets how many keys are reconciled concurrently; at least 1, which is the default.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Sets the field manager of writes and the reporter of events; the controller's name by
    /// default.
    #[must_use]
    pub fn field_manager(mut self, manager: &str) -> Self {
        manager.clone_into(&mut self.applier.manager);
        self
    }

    /// Declares a counter for [`Effect::Count`](crate::Effect::Count).
    ///
    /// # Errors
    ///
    /// Returns an error when the process already has a metric with this name.
    pub fn counter(mut self, metric: &'static str, help: &str) -> Result<Self, BuildError> {
        let registry = &self.shared.registry;
        let added = self.applier.controller_metrics.add_counter(registry, metric, help);
        self.with_metric(metric, added)
    }

    /// Declares a histogram of seconds for
    /// [`Effect::ObserveLatency`](crate::Effect::ObserveLatency). Use the buckets of Kubernetes for
    /// its metrics, and [`LATENCY_BUCKETS`](crate::LATENCY_BUCKETS) for others.
    ///
    /// # Errors
    ///
    /// Returns an error when the process already has a metric with this name.
    pub fn latency(mut self, metric: &'static str, help: &str, buckets: &[f64]) -> Result<Self, BuildError> {
        let registry = &self.shared.registry;
        let metrics = &mut self.applier.controller_metrics;
        let added = metrics.add_latency(registry, metric, help, buckets);
        self.with_metric(metric, added)
    }

    /// Counts the runs of keys and their seconds by status code, in `{prefix}_sync_total` and
    /// `{prefix}_sync_duration_seconds`.
    ///
    /// # Errors
    ///
    /// Returns an error when the process already has one of these metrics.
    pub fn sync_metrics(mut self, prefix: &'static str) -> Result<Self, BuildError> {
        let registered = SyncMetrics::register(&self.shared.registry, prefix);
        let added = registered.map(|metrics| self.sync_metrics = Some(metrics));
        self.with_metric(prefix, added)
    }

    fn with_metric(self, metric: &'static str, added: Result<(), prometheus::Error>) -> Result<Self, BuildError> {
        let controller = self.name;
        added.map(|()| self).map_err(|source| BuildError::Metric {
            controller,
            metric,
            source,
        })
    }

    /// Queues these keys once the workers run. Use this for objects to create, because no change
    /// reports an object that has never existed.
    #[must_use]
    pub fn start_with(self, keys: impl IntoIterator<Item = ObjectKey>) -> Self {
        for key in keys {
            self.gate.add(key, Lane::Routine);
        }
        self
    }

    /// Queues the keys that `keys` returns for each change. Workers start only once this informer
    /// is synced.
    ///
    /// Until workers run, the keys are held back, so that a standby has them ready when it becomes
    /// the leader.
    #[must_use]
    pub fn watch<T, K>(self, informer: &Informer<T>, keys: impl Fn(&Delta<T>) -> K + Send + Sync + 'static) -> Self
    where
        T: Projection,
        K: IntoIterator<Item = ObjectKey>,
    {
        self.watch_in(Lane::Urgent, informer, keys)
    }

    /// Like [`KeyedController::watch`], for changes that can wait until all urgent work is done,
    /// such as those caused by our own writes.
    #[must_use]
    pub fn watch_routine<T, K>(
        self,
        informer: &Informer<T>,
        keys: impl Fn(&Delta<T>) -> K + Send + Sync + 'static,
    ) -> Self
    where
        T: Projection,
        K: IntoIterator<Item = ObjectKey>,
    {
        self.watch_in(Lane::Routine, informer, keys)
    }

    /// Like [`KeyedController::watch`], for an informer without whose objects decisions are right,
    /// too, such as those that a plan checks by [`Effect::List`](crate::Effect::List). Workers do
    /// not wait for it, and the apiserver need not serve its resource.
    #[must_use]
    pub fn watch_without_sync<T, K>(
        self,
        informer: &Informer<T>,
        keys: impl Fn(&Delta<T>) -> K + Send + Sync + 'static,
    ) -> Self
    where
        T: Projection,
        K: IntoIterator<Item = ObjectKey>,
    {
        self.subscribe(Lane::Urgent, informer, keys)
    }

    /// Queues the keys that `keys` returns whenever this CA changes while workers run.
    #[must_use]
    pub fn follow_root_ca(mut self, ca: &RootCa, keys: impl Fn() -> Vec<ObjectKey> + Send + Sync + 'static) -> Self {
        self.followed.push((ca.clone(), Box::new(keys)));
        self
    }

    fn watch_in<T, K>(
        self,
        news: Lane,
        informer: &Informer<T>,
        keys: impl Fn(&Delta<T>) -> K + Send + Sync + 'static,
    ) -> Self
    where
        T: Projection,
        K: IntoIterator<Item = ObjectKey>,
    {
        let mut controller = self.subscribe(news, informer, keys);
        let informer = informer.clone();
        controller.syncs.push(Box::new(move || {
            let informer = informer.clone();
            Box::pin(async move { informer.wait_for_sync(SYNC_NOTICE).await })
        }));
        controller
    }

    fn subscribe<T, K>(
        mut self,
        news: Lane,
        informer: &Informer<T>,
        keys: impl Fn(&Delta<T>) -> K + Send + Sync + 'static,
    ) -> Self
    where
        T: Projection,
        K: IntoIterator<Item = ObjectKey>,
    {
        let (gate, own_writes) = (Arc::clone(&self.gate), Arc::clone(&self.own_writes));
        self.subscriptions.push(informer.subscribe(move |delta| {
            let lane = match delta.cause {
                Cause::Watched | Cause::Relisted => news,
                Cause::Listed | Cause::Replayed => Lane::Routine,
                Cause::Resynced => return keys(delta).into_iter().for_each(|key| gate.resync(key)),
            };
            let updated = match &delta.change {
                Change::Updated { new, .. } => Some(new.metadata()),
                Change::Added(_) | Change::Deleted { .. } => None,
            };
            let is_own = |key: &ObjectKey| {
                updated.is_some_and(|updated| updated.key() == *key && own_writes.absorbs(key, updated, lane))
            };
            for key in keys(delta) {
                if !is_own(&key) {
                    gate.add(key, lane);
                }
            }
        }));
        self
    }

    /// Returns the finished controller with the checks of its queue and of its writes.
    pub fn build(self) -> Registrations {
        let (name, queue) = (self.queue_name, self.queue.clone());
        self.shared.metrics.start_at_zero(self.name, &ReconcileResult::LABELS);
        let checker = QueueHealthChecker::of(self.name, name, queue.clone(), ObjectKey::to_string);
        let (gate, working) = (Arc::clone(&self.gate), queue.clone());
        let activity = ActivityChecker::new(self.name, move || {
            let mut activity = Activity {
                is_running: gate.is_open(),
                ..Activity::default()
            };
            activity.add_queue(name, &working, ObjectKey::to_string);
            activity
        });
        Registrations {
            queue_health_checkers: vec![checker],
            activity_checkers: vec![activity],
            readiness_checkers: vec![
                self.applier.fence_monitor.readiness_checker(),
                held_retries_checker(name, queue),
            ],
            ..Registrations::new(Runner(self))
        }
    }

    /// Waits for every cache without a limit: it may take a day until a resource is served.
    async fn wait_for_caches(&self) {
        for sync in &self.syncs {
            while let Err(missing) = sync().await {
                tracing::warn!(controller = self.name, reason = %missing, "waiting for a cache");
            }
        }
    }

    async fn run_workers(self, stop: Shutdown) -> Result<(), ControllerFailure> {
        let name = self.name;
        tokio::select! {
            () = self.wait_for_caches() => {}
            () = stop.requested() => return Ok(()),
        }
        tracing::info!(
            controller = name,
            workers = self.workers,
            "synced caches, starting workers"
        );
        let metrics = &self.shared.metrics;
        metrics
            .workers
            .with_label_values(&[name])
            .set(i64::try_from(self.workers).unwrap_or(i64::MAX));
        let clock = Arc::clone(&self.shared.clock);
        let worker = Arc::new(Worker {
            name,
            reconciler: self.reconciler,
            applier: self.applier,
            queue: self.queue.clone(),
            clock: Arc::clone(&clock),
            metrics: self.shared.metrics.clone(),
            outage: self.shared.outage.clone(),
            failures: FailureLog::default(),
            conflicts: self.conflicts,
            sync_metrics: self.sync_metrics,
            own_writes: self.own_writes,
        });
        self.gate.open();
        let mut workers = JoinSet::new();
        for _ in 0..self.workers {
            workers.spawn(Arc::clone(&worker).run());
        }
        let mut steps = clock.steps();
        let mut requeues = pin!(requeue(&self.queue, &self.shared.outage, &self.followed));
        let first = loop {
            tokio::select! {
                () = stop.requested() => break None,
                end = workers.join_next() => break end,
                Some(()) = steps.next() => {
                    tracing::info!(controller = name, "rescheduling timed keys after a clock change");
                    self.queue.reschedule_now();
                }
                () = &mut requeues => {}
            }
        };
        // From here on, workers take no more items but finish the current ones.
        self.queue.close();
        let mut broken = first.and_then(Result::err);
        while let Some(end) = workers.join_next().await {
            broken = broken.or(end.err());
        }
        broken.map_or(Ok(()), |error| {
            Err(ControllerFailure {
                controller: name,
                reason: error.to_string(),
            })
        })
    }
}

/// Retries keys at the end of an outage, and queues those that a change of a CA affects. Never
/// returns.
async fn requeue(queue: &Queue<ObjectKey>, outage: &Outage, followed: &[(RootCa, KeysOfChange)]) {
    let changes = join_all(followed.iter().map(|(ca, keys)| follow(ca, keys, queue)));
    join(retry_after_outages(queue, outage), changes).await;
}

/// Queues the keys for each change of a CA. Never returns.
async fn follow(ca: &RootCa, keys: &KeysOfChange, queue: &Queue<ObjectKey>) {
    loop {
        ca.changed().await;
        for key in keys() {
            queue.add(key, Lane::Routine);
        }
    }
}

/// The finished controller. It is a private type, so that [`KeyedController::build`] is the only
/// way to register it and the health check of its queue cannot be forgotten.
struct Runner<R>(KeyedController<R>);

impl<R: Reconciler> Controller for Runner<R> {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>> {
        Box::pin(self.0.run_workers(stop))
    }
}
