//! The part of the controller that does I/O.

mod attempt;
mod conclusion;
mod deletion;
mod metrics;
mod other_manager;
mod pages;
mod requests;
mod shared_read;
mod survey;
mod throttling;
mod tracked;
mod unused;
mod watches;

use std::{
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use portreeve_client::Outage;
use portreeve_informer::{
    Cause, Change, Delta, Discovery, Informer, MetadataOnly, ServedResources, Subscription, Watch,
};
use portreeve_reconcile::{
    Activity, ActivityChecker, Applier, BuildError, Clock, Context, Controller, ControllerFailure, ControllerMetrics,
    Events, FenceMonitor, QueueHealthChecker, Registrations, Shutdown, held_retries_checker, reconcile_span,
    retry_after_outages,
};
use portreeve_workqueue::{Lane, Queue, Work, flow_of};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Instant, interval},
};
use tracing::Instrument;

use self::{
    other_manager::OtherManager,
    requests::{NAMESPACES, Requests},
    shared_read::SharedRead,
    survey::Names,
    tracked::{Tracked, TrackedNamespaces},
    unused::UnusedResources,
    watches::ContentWatches,
};

/// The name of the queue, which is that of kube-controller-manager's metrics.
const QUEUE: &str = "namespace";
/// After this time, an attempt no longer counts as one of the concurrent ones, so that namespaces
/// whose APIs answer slowly do not hold up the others.
const SLOW_AFTER: Duration = Duration::from_secs(2);
/// The number of slow attempts that do not count.
const SLOW: usize = 100;

/// The values of the controller's flags.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The number of namespaces to work on at once.
    pub(crate) workers: usize,
    /// How long to wait after the deletion of a namespace.
    pub(crate) grace: Duration,
    /// Whether to delete and change nothing.
    pub(crate) observe: bool,
    /// Whether to leave the work to a kube-controller-manager that holds its Lease.
    pub(crate) yields: bool,
    /// The request timeout of the apiserver.
    pub(crate) request_timeout: Duration,
    /// The age of a deletion from which on it is reported.
    pub(crate) stuck_after: Duration,
}

impl Settings {
    /// Returns how long a deletion that got no answer may go on: the request timeout of the
    /// apiserver and a margin, 65 s by default.
    fn late(&self) -> Duration {
        self.request_timeout + self.request_timeout / 12
    }
}

/// The state that attempts and pages share.
struct NamespaceContext {
    name: &'static str,
    settings: Settings,
    requests: Requests,
    other_manager: OtherManager,
    applier: Applier,
    clock: Arc<dyn Clock>,
    outage: Outage,
    events: Events,
    queue: Queue<Arc<str>>,
    tracked: TrackedNamespaces,
    watches: ContentWatches,
    discovery: Discovery,
    served: watch::Receiver<Option<Arc<ServedResources>>>,
    definitions: SharedRead<Names>,
    services: SharedRead<Names>,
    unused: UnusedResources,
    /// When this replica began to lead.
    term_began: OnceLock<Instant>,
    /// The slow attempts that do not count.
    slow: Arc<Semaphore>,
}

/// The controller.
struct NamespaceController {
    ctx: Arc<NamespaceContext>,
    /// Its watch ends when this is dropped.
    _namespaces: Informer<MetadataOnly>,
    _subscription: Subscription,
}

/// Builds the controller and what it adds to the endpoints of the process.
pub(crate) fn build_controller(inputs: &Context<'_>, settings: Settings) -> Result<Registrations, BuildError> {
    let (name, shared) = (inputs.name, inputs.shared);
    // Each namespace has its own share of the retries.
    let queue = Queue::with_retry_budget(QUEUE, &shared.queues, shared.retry_budget, flow_of::<Arc<str>>);
    let shared_watches = inputs.informers.shared_watches();
    let (discovery, served) = Discovery::start(inputs.client.clone(), &shared_watches);
    let fence_monitor = FenceMonitor::new(inputs);
    let ctx = Arc::new(NamespaceContext {
        name,
        settings,
        requests: Requests::new(inputs.client.clone(), fence_monitor.clone()),
        other_manager: OtherManager::default(),
        applier: Applier {
            client: inputs.client.clone(),
            events: shared.events.clone(),
            manager: name.to_owned(),
            dry_run: settings.observe,
            controller_metrics: ControllerMetrics::default(),
            clock: Arc::clone(&shared.clock),
            fence_monitor: fence_monitor.clone(),
        },
        clock: Arc::clone(&shared.clock),
        outage: shared.outage.clone(),
        events: shared.events.clone(),
        watches: ContentWatches::new(shared_watches, queue.clone()),
        queue: queue.clone(),
        tracked: TrackedNamespaces::default(),
        discovery,
        served,
        definitions: SharedRead::default(),
        services: SharedRead::default(),
        unused: UnusedResources::default(),
        term_began: OnceLock::new(),
        slow: Arc::new(Semaphore::new(SLOW)),
    });
    metrics::register(&ctx, &shared.registry).map_err(|source| BuildError::Metric {
        controller: name,
        metric: "namespace_controller_*",
        source,
    })?;
    let namespaces = inputs.informer::<MetadataOnly>(Watch::all(NAMESPACES));
    let observing = Arc::downgrade(&ctx);
    let subscription = namespaces.subscribe(move |delta| {
        observing.upgrade().inspect(|ctx| ctx.observe(delta));
    });
    Ok(Registrations {
        queue_health_checkers: vec![QueueHealthChecker::of(name, QUEUE, queue.clone(), ToString::to_string)],
        activity_checkers: vec![activity_checker(&ctx)],
        debug_pages: vec![pages::explain(&ctx)],
        readiness_checkers: vec![
            pages::readiness_checker(&ctx),
            fence_monitor.readiness_checker(),
            held_retries_checker(QUEUE, queue),
        ],
        controller: Box::new(NamespaceController {
            ctx,
            _namespaces: namespaces,
            _subscription: subscription,
        }),
    })
}

/// Returns the checker of what the controller has to do.
fn activity_checker(ctx: &Arc<NamespaceContext>) -> ActivityChecker {
    let weak = Arc::downgrade(ctx);
    ActivityChecker::new(ctx.name, move || {
        let Some(ctx) = weak.upgrade() else {
            return Activity::default();
        };
        let mut activity = Activity {
            is_running: ctx.term_began.get().is_some(),
            served: ctx.served.borrow().clone(),
            ..Activity::default()
        };
        activity.add_queue(QUEUE, &ctx.queue, ToString::to_string);
        activity
    })
}

impl Controller for NamespaceController {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>> {
        Box::pin(async move { self.ctx.run(stop).await })
    }
}

impl NamespaceContext {
    /// Handles a change of a namespace.
    fn observe(&self, delta: &Delta<MetadataOnly>) {
        match &delta.change {
            Change::Added(namespace) | Change::Updated { new: namespace, .. } => {
                let is_new = self.tracked.observe(&namespace.metadata);
                let name = Arc::clone(&namespace.metadata.name);
                if is_new && self.term_began.get().is_some() {
                    self.queue.add(name, Lane::Urgent);
                } else if delta.cause == Cause::Resynced && self.tracked.get(&name).is_some() {
                    self.queue.resync(name);
                }
            }
            Change::Deleted { last, .. } => {
                self.tracked.remove(&last.metadata.name, &last.metadata.uid);
                if self.term_began.get().is_some() {
                    // The attempt ends its watches.
                    self.queue.add(Arc::clone(&last.metadata.name), Lane::Routine);
                }
            }
        }
    }

    /// Returns when this replica began to lead.
    fn term_began(&self) -> Instant {
        self.term_began.get().copied().unwrap_or_else(Instant::now)
    }

    async fn run(self: Arc<Self>, stop: Shutdown) -> Result<(), ControllerFailure> {
        self.begin();
        let mut attempts = JoinSet::new();
        let permits = Arc::new(Semaphore::new(self.settings.workers));
        let mut served = self.served.clone();
        let mut closing = interval(watches::KEEP);
        let mut retries = pin!(retry_after_outages(&self.queue, &self.outage));
        let mut broken = loop {
            tokio::select! {
                () = stop.requested() => break None,
                Some(end) = attempts.join_next(), if !attempts.is_empty() => if let Err(error) = end {
                    break Some(error);
                },
                Some((permit, work)) = self.next(&permits) => {
                    attempts.spawn(Arc::clone(&self).work(permit, work));
                }
                Ok(()) = served.changed() => self.retry_blind(),
                _ = closing.tick() => self.watches.close_unused(),
                () = &mut retries => {}
            }
        };
        self.queue.close();
        while let Some(end) = attempts.join_next().await {
            broken = broken.or(end.err());
        }
        broken.map_or(Ok(()), |error| {
            Err(ControllerFailure {
                controller: self.name,
                reason: error.to_string(),
            })
        })
    }

    /// Begins the term, and queues the namespaces that are being deleted.
    fn begin(&self) {
        self.term_began.get_or_init(Instant::now);
        for name in self.tracked.names(|_| true) {
            self.queue.add(name, Lane::Routine);
        }
    }

    /// Waits for an attempt to begin. `None` means that the queue is closed.
    async fn next(&self, permits: &Arc<Semaphore>) -> Option<(OwnedSemaphorePermit, Work<Arc<str>>)> {
        let permit = Arc::clone(permits).acquire_owned().await.ok()?;
        Some((permit, self.queue.take().await?))
    }

    async fn work(self: Arc<Self>, permit: OwnedSemaphorePermit, work: Work<Arc<str>>) {
        let span = reconcile_span(self.name, work.key());
        let outcome = {
            let mut attempt = pin!(self.attempt(&work).instrument(span));
            tokio::select! {
                outcome = &mut attempt => outcome,
                () = tokio::time::sleep(SLOW_AFTER) => {
                    let slow = Arc::clone(&self.slow).try_acquire_owned();
                    let _held = slow.unwrap_or(permit);
                    attempt.await
                }
            }
        };
        work.finish(outcome);
    }

    /// Retries the namespaces of which something could not be read.
    fn retry_blind(&self) {
        for name in self.tracked.names(Tracked::is_blind) {
            self.queue.add(name, Lane::Routine);
        }
    }
}
