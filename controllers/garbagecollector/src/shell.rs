//! What acts: watches that feed the graph, workers that carry out what it comes to, and what operators see of both.
//!
//! Architecture Invariant: the graph's lock is held for one change or one step, and never across an await.
//! Architecture Invariant: only [`requests`] sends what changes anything, through the client that the fence guards.

mod ask;
mod breaker;
mod census;
mod journal;
mod metrics;
mod monitors;
mod orphans;
mod pages;
mod requests;
mod worker;

use std::{
    collections::{HashMap, HashSet},
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
use portreeve_informer::{Discovery, Served};
use portreeve_reconcile::{BuildError, Clock, Controller, Crash, Events, Note, Setup, Shutdown, Target, Vital};
use portreeve_workqueue::{Direct, Lane, Queue, Work};
use tokio::{
    sync::{Notify, Semaphore, watch},
    task::JoinSet,
    time::Instant,
};

use self::{ask::Ledger, breaker::Breaker, census::Censuses, journal::Journal, metrics::Metrics, monitors::Monitors};
use crate::{Effects, Graph, Identity, Invalid, Invalidity, Uid};

/// The queues, as the original's metrics name them.
const ATTEMPTS: &str = "garbage_collector_attempt_to_delete";
const ORPHANS: &str = "garbage_collector_attempt_to_orphan";
/// How long the first lists may take before the workers start without some of them, as in the original.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the flags ask for.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// How many objects are worked on at once.
    pub(crate) workers: usize,
    /// Write nothing.
    pub(crate) observe: bool,
    /// Resources that nothing is known of, as `plural.group`.
    pub(crate) ignored: HashSet<String>,
    /// How many objects may be deleted within a minute; 0: as many as there are.
    pub(crate) limit: u32,
}

/// All that the watches, the workers and the pages share.
pub(crate) struct Core {
    name: &'static str,
    settings: Settings,
    client: Client,
    clock: Arc<dyn Clock>,
    events: Events,
    graph: Mutex<Graph>,
    attempts: Queue<Uid>,
    orphans: Queue<Uid>,
    changes: Direct,
    /// Whether there are workers. Until then nothing is queued: who begins to act surveys the graph.
    active: AtomicBool,
    served: watch::Receiver<Option<Arc<Served>>>,
    /// The resources that are watched, as pages and lists go by them.
    watched: watch::Sender<Vec<monitors::State>>,
    ledger: Ledger,
    censuses: Censuses,
    breaker: Breaker,
    journal: Journal,
    metrics: Metrics,
    troubles: Mutex<Troubles>,
    /// How many requests of orphaning are under way.
    orphaning: Semaphore,
    /// One of them has ended.
    orphaned: Notify,
}

/// Who could not be dealt with so far.
#[derive(Default)]
struct Troubles {
    /// Since when, and why; apart for those whose dependents are to be orphaned.
    failing: HashMap<(Uid, bool), (Instant, String)>,
    /// Those among them whose owners nobody can tell of: they may be told of when more is served.
    unknown: HashSet<Uid>,
    /// When the dependents of an owner began to go.
    cascades: HashMap<Uid, Instant>,
}

/// The controller.
pub(crate) struct Collector {
    core: Arc<Core>,
    /// The watches, which go on as long as this does.
    watching: JoinSet<()>,
}

impl Collector {
    pub(crate) fn build(setup: &mut Setup<'_>, settings: Settings) -> Result<Box<dyn Controller>, BuildError> {
        let name = setup.name;
        let shared = setup.shared.clone();
        let queue = |queue| Queue::new(queue, &shared.queues);
        let (discovery, served) = Discovery::follow(setup.client.clone(), shared.informers.tuning());
        let workers = settings.workers;
        let core = Arc::new(Core {
            name,
            client: setup.client.clone(),
            clock: Arc::clone(&shared.clock),
            events: shared.events.clone(),
            graph: Mutex::default(),
            attempts: queue(ATTEMPTS),
            orphans: queue(ORPHANS),
            changes: shared.queues.direct("garbage_collector_graph_changes"),
            active: AtomicBool::new(false),
            served,
            watched: watch::channel(Vec::new()).0,
            ledger: Ledger::default(),
            censuses: Censuses::default(),
            breaker: Breaker::new(settings.limit, setup.notebook.clone()),
            journal: Journal::default(),
            metrics: Metrics::register(&shared.registry).map_err(|source| BuildError::Metric {
                controller: name,
                metric: "gc_*",
                source,
            })?,
            troubles: Mutex::default(),
            orphaning: Semaphore::new(workers),
            orphaned: Notify::new(),
            settings,
        });
        metrics::observe(&core, &shared.registry).map_err(|source| BuildError::Metric {
            controller: name,
            metric: "gc_*",
            source,
        })?;
        setup.vitals.extend(core.vitals());
        setup.pages.extend(pages::of(&core));
        setup.findings.push(pages::findings(&core));
        let mut watching = JoinSet::new();
        let tuning = shared.informers.tuning().clone();
        watching.spawn(Monitors::new(Arc::clone(&core), discovery, tuning).run());
        Ok(Box::new(Self { core, watching }))
    }

    async fn collect(mut self, stop: Shutdown) -> Result<(), Crash> {
        let core = Arc::clone(&self.core);
        tokio::select! {
            () = core.first_lists() => {}
            () = stop.requested() => return Ok(()),
        }
        // Before anybody deletes anything: the breaker may have tripped in another's hands.
        core.breaker.catch_up(&core);
        core.begin();
        let mut workers = JoinSet::new();
        for _ in 0..core.settings.workers {
            workers.spawn(worker::run(Arc::clone(&core)));
            workers.spawn(orphans::run(Arc::clone(&core), stop.clone()));
        }
        workers.spawn(breaker::keep(Arc::clone(&core), stop.clone()));
        let first = tokio::select! {
            () = stop.requested() => None,
            end = workers.join_next() => end,
            end = self.watching.join_next() => end,
        };
        core.attempts.close();
        core.orphans.close();
        stop.request();
        let mut broken = first.and_then(Result::err);
        while let Some(end) = workers.join_next().await {
            broken = broken.or(end.err());
        }
        self.watching.shutdown().await;
        broken.map_or(Ok(()), |error| {
            Err(Crash {
                controller: core.name,
                reason: error.to_string(),
            })
        })
    }
}

impl Controller for Collector {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), Crash>> {
        Box::pin(self.collect(stop))
    }
}

impl Core {
    fn vitals(self: &Arc<Self>) -> [Vital; 2] {
        [(ATTEMPTS, &self.attempts), (ORPHANS, &self.orphans)].map(|(name, queue)| {
            let weak = Arc::downgrade(self);
            let tell = move |uid: &Uid| {
                // Not waited for: whoever is stuck may hold the graph.
                let named = weak.upgrade().and_then(|core| Some(core.graph.try_lock()?.name(*uid)));
                named.unwrap_or_else(|| "(the graph is busy)".to_owned())
            };
            Vital::of(self.name, name, queue.clone(), tell)
        })
    }

    /// Waits until every resource is listed, or for as long as anybody may be kept waiting for one that cannot be.
    async fn first_lists(&self) {
        let mut served = self.served.clone();
        let complete = async {
            // An error means that nobody follows any more, which the caller notices.
            served.wait_for(Option::is_some).await.ok();
            let mut watched = self.watched.subscribe();
            let all =
                |states: &Vec<monitors::State>| !states.is_empty() && states.iter().all(monitors::State::is_synced);
            watched.wait_for(all).await.ok();
        };
        if tokio::time::timeout(PATIENCE, complete).await.is_ok() {
            tracing::info!(controller = self.name, "all resources are synced, starting workers");
        } else {
            let missing = self.unsynced().join("; ");
            tracing::warn!(
                controller = self.name,
                missing,
                "not all resources could be synced, starting workers anyway"
            );
        }
    }

    /// The resources that are not synced, and why.
    fn unsynced(&self) -> Vec<String> {
        let states = self.watched.borrow();
        let missing = states.iter().filter(|state| !state.is_synced());
        missing.map(ToString::to_string).collect()
    }

    /// The resources of which nothing was heard for too long, and why.
    fn stale(&self) -> Vec<String> {
        let now = Instant::now();
        self.watched
            .borrow()
            .iter()
            .filter_map(|state| state.stale(now))
            .collect()
    }

    /// There are workers from now on: all that the graph has to do is queued.
    fn begin(&self) {
        let mut effects = Effects::default();
        {
            let graph = self.graph.lock();
            self.active.store(true, Ordering::Relaxed);
            graph.survey(&mut effects);
        }
        self.carry_out(&mut effects);
    }

    /// Changes the graph, and queues what follows.
    fn change<R>(&self, change: impl FnOnce(&mut Graph, &mut Effects) -> R) -> R {
        let mut effects = Effects::default();
        let result = change(&mut self.graph.lock(), &mut effects);
        self.carry_out(&mut effects);
        result
    }

    /// Queues what follows from a change, and leaves the effects empty.
    fn carry_out(&self, effects: &mut Effects) {
        let is_active = self.active.load(Ordering::Relaxed);
        if is_active {
            for uid in effects.attempt.drain(..) {
                self.attempts.add(uid, Lane::Urgent);
            }
            for uid in effects.orphan.drain(..) {
                self.orphans.add(uid, Lane::Urgent);
            }
            for invalid in effects.invalid.drain(..) {
                self.tell_of(&invalid);
            }
        }
        if !effects.begun.is_empty() || !effects.ended.is_empty() {
            let now = Instant::now();
            let mut troubles = self.troubles.lock();
            for uid in effects.begun.drain(..) {
                troubles.cascades.insert(uid, now);
            }
            for uid in effects.ended.drain(..) {
                if let Some(since) = troubles.cascades.remove(&uid) {
                    self.metrics.cascades.observe(now.duration_since(since).as_secs_f64());
                }
            }
        }
        effects.attempt.clear();
        effects.orphan.clear();
        effects.invalid.clear();
    }

    /// An Event on the dependent of a reference that cannot mean what it says.
    fn tell_of(&self, invalid: &Invalid) {
        let Invalid {
            dependent,
            owner,
            reason,
        } = invalid;
        if *reason == Invalidity::Coordinates {
            tracing::info!(%dependent, %owner, "a reference does not name its owner as it is called");
            return;
        }
        tracing::warn!(%dependent, %owner, "a reference leads into another namespace");
        let namespace = dependent.namespace.as_deref().unwrap_or_default();
        let sentence = format!("ownerRef {owner} does not exist in namespace {namespace:?}");
        self.note(
            dependent,
            &Note::warning("OwnerRefInvalidNamespace", "Collect", sentence).once(&*owner.uid),
        );
    }

    /// An Event on an object, if its kind is served.
    fn note(&self, item: &Identity, note: &Note) {
        let Some(resource) = self.resource(item) else { return };
        let target = Target {
            key: key_of(&resource, item),
            resource,
            uid: (*item.uid).into(),
            version: "".into(),
        };
        self.events.send(self.name, &target, note);
    }

    /// Where objects of this kind are served.
    fn resource(&self, item: &Identity) -> Option<Resource> {
        let served = self.served.borrow();
        served.as_ref()?.lookup(&item.api_version, &item.kind).cloned()
    }

    /// What could not be told of may be now: more is served, or listed.
    fn ask_again(&self) {
        if self.active.load(Ordering::Relaxed) {
            let unknown = std::mem::take(&mut self.troubles.lock().unknown);
            for uid in unknown {
                self.attempts.add(uid, Lane::Routine);
            }
        }
    }

    /// Returns whether that is news: nothing was wrong with it, or something else.
    fn failed(&self, who: (Uid, bool), reason: String, is_unknown: bool) -> bool {
        let mut troubles = self.troubles.lock();
        let is_news = troubles.failing.get(&who).is_none_or(|(_, before)| *before != reason);
        let since = troubles
            .failing
            .get(&who)
            .map_or_else(Instant::now, |(since, _)| *since);
        troubles.failing.insert(who, (since, reason));
        if is_unknown {
            troubles.unknown.insert(who.0);
        } else if !who.1 {
            // It could be told, and something else is wrong now.
            troubles.unknown.remove(&who.0);
        }
        is_news
    }

    fn succeeded(&self, uid: Uid, orphaning: bool) {
        let mut troubles = self.troubles.lock();
        troubles.failing.remove(&(uid, orphaning));
        if !orphaning {
            troubles.unknown.remove(&uid);
        }
    }
}

/// Waits for a turn. As long as those before it move, whoever waits is not stuck either.
async fn in_turn<T>(turn: impl Future<Output = T>, moved: &Notify, work: &Work<Uid>) -> T {
    let mut turn = pin!(turn);
    loop {
        tokio::select! {
            turn = &mut turn => {
                work.step();
                return turn;
            }
            () = moved.notified() => work.step(),
        }
    }
}

/// How an object is named within its resource: one of the cluster has no namespace, whoever means it.
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
