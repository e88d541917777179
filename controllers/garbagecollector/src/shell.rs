//! The part of the collector that does I/O: watches that feed the graph, workers that carry out its
//! decisions, and the pages and metrics that operators see.
//!
//! Architecture Invariant: the graph's lock is held for one change or one step, and never across an
//! await.
//!
//! Architecture Invariant: only [`requests`] sends mutating requests, through the client that the
//! fence guards.

mod activity;
mod breaker;
mod coalescer;
mod decision_log;
mod dependent_scan;
mod failure_reports;
mod failures;
mod follow_ups;
mod foreground_wait;
mod graph_sink;
mod lease_annotations;
mod list_failures;
mod lists;
mod metrics;
mod monitors;
mod orphaned_owners;
mod orphans;
mod pages;
mod patches;
mod queued_object;
mod read_gates;
mod requests;
mod store_history;
mod watched_object;
mod worker;

use std::{
    collections::HashSet,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use kube::Client;
use parking_lot::Mutex;
use portreeve_api::{ObjectKey, Resource};
use portreeve_client::{ApiErrorKind, Outage};
use portreeve_garbagecollector_graph::{FollowUps, Graph, Identity};
use portreeve_informer::{Discovery, ServedResources};
use portreeve_reconcile::{
    BuildError, Clock, Context, Controller, ControllerFailure, EventContent, Events, FenceMonitor, QueueHealthChecker,
    Registrations, Shutdown, Target, held_retries_checker, retry_after_outages,
};
use portreeve_workqueue::{Lane, Queue, UnqueuedWork, Work};
use tokio::{
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
    time::Instant,
};

pub use self::lease_annotations::{AnnotateError, LeaseAnnotations};
use self::{
    breaker::Breaker,
    coalescer::RequestCoalescer,
    decision_log::DecisionLog,
    dependent_scan::DependentScans,
    failures::{FailureTracker, Task},
    foreground_wait::SyncWaits,
    list_failures::ListFailures,
    metrics::Metrics,
    monitors::Monitors,
    orphaned_owners::OrphanRecord,
    queued_object::QueuedObject,
    read_gates::ReadGates,
    requests::{RequestError, Writer},
    store_history::StoreHistory,
};

/// The names of the queues, which are those of kube-controller-manager's metrics.
const ATTEMPTS: &str = "garbage_collector_attempt_to_delete";
const ORPHANS: &str = "garbage_collector_attempt_to_orphan";
/// The time after which workers start even if some first lists are not complete, as in
/// kube-controller-manager.
const INITIAL_SYNC_TIMEOUT: Duration = Duration::from_secs(30);

/// The values of the collector's flags.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The number of objects to work on at once.
    pub(crate) workers: usize,
    /// Whether to delete and change no object.
    pub(crate) observe: bool,
    /// The resources that are neither watched nor collected, as `plural.group`.
    pub(crate) ignored: HashSet<String>,
    /// The maximum number of deletions within one minute; 0 means no limit.
    pub(crate) limit: u32,
}

/// The state that the watches, the workers and the pages share.
pub(crate) struct CollectorContext {
    name: &'static str,
    settings: Settings,
    client: Client,
    writer: Writer,
    clock: Arc<dyn Clock>,
    outage: Outage,
    events: Events,
    graph: Mutex<Graph>,
    attempts: Queue<QueuedObject>,
    orphans: Queue<QueuedObject>,
    changes: UnqueuedWork,
    /// Whether workers run. Until then nothing is queued, because a replica that becomes active
    /// scans the whole graph.
    active: AtomicBool,
    served: watch::Receiver<Option<Arc<ServedResources>>>,
    /// The watched resources, for pages and lists.
    watched: watch::Sender<Vec<monitors::MonitorState>>,
    coalescer: RequestCoalescer,
    read_gates: ReadGates,
    store_history: StoreHistory,
    dependent_scans: DependentScans,
    sync_waits: SyncWaits,
    list_failures: ListFailures,
    orphan_record: OrphanRecord,
    breaker: Breaker,
    decision_log: DecisionLog,
    metrics: Metrics,
    failures: Mutex<FailureTracker>,
    /// Limits the number of concurrent requests that orphan dependents.
    orphaning: Semaphore,
    /// Notified whenever such a request ends.
    orphaned: Notify,
}

/// The garbage collector.
pub(crate) struct Collector {
    ctx: Arc<CollectorContext>,
    /// The task that runs the watches. It ends when this is dropped.
    watching: JoinSet<()>,
}

impl Collector {
    pub(crate) fn build(inputs: &Context<'_>, settings: Settings) -> Result<Registrations, BuildError> {
        let (name, shared) = (inputs.name, inputs.shared);
        let budget = shared.retry_budget.split(2);
        let queue = |queue| Queue::with_retry_budget(queue, &shared.queues, budget, QueuedObject::flow);
        let watches = inputs.informers.shared_watches();
        let (discovery, served) = Discovery::start(inputs.client.clone(), &watches);
        let lease = inputs.lease.as_ref();
        let annotations = lease.map(|lease| LeaseAnnotations::new(inputs.client.clone(), lease.clone()));
        let fence_monitor = FenceMonitor::new(inputs);
        let metric_error = |source| BuildError::Metric {
            controller: name,
            metric: "gc_*",
            source,
        };
        let ctx = Arc::new(CollectorContext {
            name,
            client: inputs.client.clone(),
            writer: Writer {
                client: inputs.client.clone(),
                fence_monitor: fence_monitor.clone(),
            },
            clock: Arc::clone(&shared.clock),
            outage: shared.outage.clone(),
            events: shared.events.clone(),
            graph: Mutex::default(),
            attempts: queue(ATTEMPTS),
            orphans: queue(ORPHANS),
            changes: shared.queues.direct("garbage_collector_graph_changes"),
            active: AtomicBool::new(false),
            served,
            watched: watch::channel(Vec::new()).0,
            coalescer: RequestCoalescer::default(),
            read_gates: ReadGates::default(),
            store_history: StoreHistory::new(lease),
            dependent_scans: DependentScans::default(),
            sync_waits: SyncWaits::default(),
            list_failures: ListFailures::default(),
            orphan_record: OrphanRecord::new(annotations.clone()),
            breaker: Breaker::new(settings.limit, annotations),
            decision_log: DecisionLog::default(),
            metrics: Metrics::register(&shared.registry).map_err(metric_error)?,
            failures: Mutex::default(),
            orphaning: Semaphore::new(settings.workers),
            orphaned: Notify::new(),
            settings,
        });
        metrics::register_graph(&ctx, &shared.registry).map_err(metric_error)?;
        let mut watching = JoinSet::new();
        watching.spawn(Monitors::new(Arc::clone(&ctx), discovery, watches).run());
        Ok(Registrations {
            queue_health_checkers: ctx.queue_health_checkers().into(),
            activity_checkers: vec![ctx.activity_checker()],
            debug_pages: pages::all(&ctx),
            readiness_checkers: vec![
                pages::readiness_checks(&ctx),
                fence_monitor.readiness_checker(),
                held_retries_checker(ATTEMPTS, ctx.attempts.clone()),
                held_retries_checker(ORPHANS, ctx.orphans.clone()),
            ],
            controller: Box::new(Self { ctx, watching }),
        })
    }

    async fn collect(mut self, stop: Shutdown) -> Result<(), ControllerFailure> {
        let ctx = Arc::clone(&self.ctx);
        tokio::select! {
            () = ctx.wait_for_initial_sync() => {}
            () = stop.requested() => return Ok(()),
        }
        // A former leader may have recorded that the breaker has tripped, and that dependents are
        // to be orphaned. Read the annotations before anything is deleted.
        ctx.breaker.catch_up(&ctx);
        ctx.orphan_record.catch_up(&ctx);
        ctx.begin();
        let mut workers = JoinSet::new();
        for _ in 0..ctx.settings.workers {
            workers.spawn(worker::run(Arc::clone(&ctx)));
            workers.spawn(orphans::run(Arc::clone(&ctx), stop.clone()));
        }
        workers.spawn(breaker::run(Arc::clone(&ctx), stop.clone()));
        workers.spawn(store_history::run(Arc::clone(&ctx), stop.clone()));
        workers.spawn(list_failures::run(Arc::clone(&ctx), stop.clone()));
        workers.spawn(orphaned_owners::run(Arc::clone(&ctx), stop.clone()));
        let first = tokio::select! {
            () = stop.requested() => None,
            end = workers.join_next() => end,
            end = self.watching.join_next() => end,
            () = retry_after_outages(&ctx.attempts, &ctx.outage) => None,
            () = retry_after_outages(&ctx.orphans, &ctx.outage) => None,
        };
        ctx.attempts.close();
        ctx.orphans.close();
        stop.request();
        let mut broken = first.and_then(Result::err);
        while let Some(end) = workers.join_next().await {
            broken = broken.or(end.err());
        }
        self.watching.shutdown().await;
        broken.map_or(Ok(()), |error| {
            Err(ControllerFailure {
                controller: ctx.name,
                reason: error.to_string(),
            })
        })
    }
}

impl Controller for Collector {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>> {
        Box::pin(self.collect(stop))
    }
}

impl CollectorContext {
    fn queue_health_checkers(self: &Arc<Self>) -> [QueueHealthChecker; 2] {
        [(ATTEMPTS, &self.attempts), (ORPHANS, &self.orphans)].map(|(name, queue)| {
            let weak = Arc::downgrade(self);
            let tell = move |object: &QueuedObject| {
                // `try_lock`, because the item that is stuck may hold the graph's lock.
                let named = weak
                    .upgrade()
                    .and_then(|ctx| Some(ctx.graph.try_lock()?.name(object.uid)));
                named.unwrap_or_else(|| "(the graph is busy)".to_owned())
            };
            QueueHealthChecker::of(self.name, name, queue.clone(), tell)
        })
    }

    /// Waits until every resource is listed, but at most for `INITIAL_SYNC_TIMEOUT`.
    async fn wait_for_initial_sync(&self) {
        let mut served = self.served.clone();
        let complete = async {
            // An error means that discovery has ended, which the caller notices.
            served.wait_for(Option::is_some).await.ok();
            let mut watched = self.watched.subscribe();
            let all = |states: &Vec<monitors::MonitorState>| {
                !states.is_empty() && states.iter().all(monitors::MonitorState::is_synced)
            };
            watched.wait_for(all).await.ok();
        };
        if tokio::time::timeout(INITIAL_SYNC_TIMEOUT, complete).await.is_ok() {
            tracing::info!(controller = self.name, "synced all resources, starting workers");
        } else {
            let missing = self.unsynced().join("; ");
            tracing::warn!(
                controller = self.name,
                missing,
                "failed to sync all resources in time, starting workers anyway"
            );
        }
    }

    /// Returns the resources that are not synced, and why.
    fn unsynced(&self) -> Vec<String> {
        let states = self.watched.borrow();
        let missing = states.iter().filter(|state| !state.is_synced());
        missing.map(ToString::to_string).collect()
    }

    /// Returns the resources whose watches have had no contact with the apiserver for too long, and
    /// why.
    fn stale(&self) -> Vec<String> {
        let now = Instant::now();
        self.watched
            .borrow()
            .iter()
            .filter_map(|state| state.stale(now))
            .collect()
    }

    /// Marks the collector as active, and queues all work in the graph.
    fn begin(&self) {
        let mut follow_ups = FollowUps::default();
        {
            let graph = self.graph.lock();
            self.active.store(true, Ordering::Relaxed);
            graph.full_scan(&mut follow_ups);
        }
        self.enqueue(&mut follow_ups);
    }

    /// Sends an event on an object if its kind is served. Returns whether the event was queued.
    fn note(&self, item: &Identity, note: &EventContent) -> bool {
        let Some(resource) = self.resource(item) else {
            return false;
        };
        let target = Target {
            key: key_of(&resource, item),
            resource,
            uid: (*item.uid).into(),
            version: "".into(),
        };
        self.events.send(self.name, &target, note)
    }

    /// Returns the resource that serves objects of this kind.
    fn resource(&self, item: &Identity) -> Option<Resource> {
        let served = self.served.borrow();
        served.as_ref()?.lookup(&item.api_version, &item.kind).cloned()
    }

    /// Returns whether objects of the resource's kind are served, in any version.
    fn is_kind_served(&self, resource: &Resource) -> bool {
        let served = self.served.borrow();
        served.as_ref().is_some_and(|served| {
            let mut all = served.preferred(&[]);
            all.any(|other| other.group == resource.group && other.kind == resource.kind)
        })
    }

    /// Returns the resource that serves objects of this kind. If there is none, returns the failure
    /// of a request for this object.
    fn served_as(&self, item: &Identity) -> Result<Resource, RequestError> {
        self.resource(item).ok_or_else(|| RequestError::Other {
            message: format!("kind {} of {} is not served", item.kind, item.api_version),
            kind: ApiErrorKind::NotFound,
            after: None,
            is_unavailable: false,
        })
    }

    /// Retries the objects whose owners' existence is unknown, because more resources are now
    /// served or listed.
    fn retry_unknown(&self) {
        if self.active.load(Ordering::Relaxed) {
            let unknown = self.failures.lock().take_unknown();
            for uid in unknown {
                self.add(&self.attempts, uid, Lane::Routine);
            }
        }
    }

    /// Records a failed attempt. Returns whether the failure is new: the last attempt did not fail,
    /// or had another reason.
    fn failed(&self, task: Task, reason: String, is_unknown: bool) -> bool {
        let now = Instant::now();
        self.failures.lock().failed(task, reason, is_unknown, now)
    }

    fn succeeded(&self, task: Task) {
        self.failures.lock().succeeded(task);
    }
}

/// Waits for a turn. Reports progress whenever another holder makes progress, so that the waiting
/// item is not considered stuck.
async fn wait_with_progress<T>(turn: impl Future<Output = T>, moved: &Notify, work: &Work<QueuedObject>) -> T {
    let mut turn = pin!(turn);
    loop {
        tokio::select! {
            turn = &mut turn => {
                work.report_progress();
                return turn;
            }
            () = moved.notified() => work.report_progress(),
        }
    }
}

/// Returns the key of an object within its resource. For a cluster-scoped resource the key has no
/// namespace, even if the dependent has one.
fn key_of(resource: &Resource, item: &Identity) -> ObjectKey {
    let namespace = match resource.scope {
        portreeve_api::Scope::Cluster => None,
        portreeve_api::Scope::Namespaced => item.namespace.as_deref().map(Into::into),
    };
    ObjectKey {
        namespace,
        name: (*item.name).into(),
    }
}
