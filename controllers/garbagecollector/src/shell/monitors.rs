//! The watches: one for each resource that is served and can be collected, and none for what is not served any more.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use portreeve_api::Resource;
use portreeve_client::ApiErrorKind;
use portreeve_informer::{
    Discovery, Event, InformerConfig, ReflectorConfig, ServedResources, Sink, StatusReporter, Verb, Watch, reflect,
};
use tokio::{
    sync::{Notify, watch},
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until},
};
use tracing::Instrument;

use super::CollectorContext;
use crate::{FollowUps, Monitor, PartialObject};

/// What a resource must offer to be collected.
const VERBS: &[Verb] = &[Verb::Delete, Verb::List, Verb::Watch];
/// How often is looked whether resources may still be read.
const LOOK: Duration = Duration::from_secs(10);
/// How long a watch goes on after its resource has left discovery: the last deletions are still on their way.
const LEAVE: Duration = Duration::from_millis(300);

/// How a watch fares.
#[derive(Clone)]
pub(crate) struct MonitorState {
    pub(crate) resource: Resource,
    complete: Arc<AtomicBool>,
    reporter: StatusReporter,
    stale_after: Duration,
}

impl MonitorState {
    /// Whether every object of the resource was seen, and nothing is known to be wrong.
    pub(crate) fn is_synced(&self) -> bool {
        self.complete.load(Ordering::Relaxed) && !self.is_lost()
    }

    /// Why nothing has been heard of the resource for too long, if so: what was seen of it may have changed.
    pub(crate) fn stale(&self, now: Instant) -> Option<String> {
        let age = now.saturating_duration_since(self.reporter.last_contact()?);
        (self.is_synced() && age > self.stale_after).then(|| {
            let failure = self.reporter.failure().map(|failure| failure.message);
            let reason = failure.as_deref().unwrap_or("the connection is silent");
            format!("{}, last heard of {} s ago: {reason}", self.resource, age.as_secs())
        })
    }

    /// The resource may not be read any more, or is not served: what was seen of it is no evidence.
    fn is_lost(&self) -> bool {
        let failure = self.reporter.failure();
        failure.is_some_and(|failure| matches!(failure.kind, ApiErrorKind::Forbidden | ApiErrorKind::NotFound))
    }
}

/// The resource, and why it is not synced.
impl fmt::Display for MonitorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.reporter.failure().map(|failure| failure.message);
        let reason = failure.as_deref().unwrap_or("the first list is still under way");
        write!(f, "{}: {reason}", self.resource)
    }
}

struct Running {
    state: MonitorState,
    monitor: Monitor,
    task: AbortHandle,
    wake: Arc<Notify>,
}

/// Follows discovery.
pub(crate) struct Monitors {
    ctx: Arc<CollectorContext>,
    discovery: Discovery,
    informer_config: InformerConfig,
    loops: JoinSet<()>,
    /// By plural and group.
    running: BTreeMap<(String, String), Running>,
    /// What has left, until when it is still watched.
    leaving: Vec<(Instant, Running)>,
    failures: u64,
    never: watch::Receiver<u64>,
}

impl Monitors {
    pub(crate) fn new(ctx: Arc<CollectorContext>, discovery: Discovery, informer_config: InformerConfig) -> Self {
        Self {
            ctx,
            discovery,
            informer_config,
            loops: JoinSet::new(),
            running: BTreeMap::new(),
            leaving: Vec::new(),
            failures: 0,
            // Nothing that is decided depends on how late a watch is, so nobody who comes to lead has to list anew.
            never: watch::channel(0).1,
        }
    }

    pub(crate) async fn run(mut self) {
        let mut served = self.ctx.served.clone();
        let mut is_news = true;
        loop {
            let present = served.borrow_and_update().clone();
            if let Some(present) = present.filter(|_| is_news) {
                self.follow(&present);
            }
            self.count_failures();
            self.distrust();
            let next = self.leaving.iter().map(|(until, _)| *until).min();
            let due = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            is_news = tokio::select! {
                changed = served.changed() => if changed.is_err() { return } else { true },
                () = due => {
                    self.leave(Instant::now()).await;
                    false
                }
                () = tokio::time::sleep(LOOK) => false,
            };
        }
    }

    /// What was seen of resources that may not be read any more is no evidence: it is asked for, until they are listed again.
    fn distrust(&self) {
        for running in self.running.values() {
            if running.state.is_lost() && running.state.complete.swap(false, Ordering::Relaxed) {
                tracing::warn!(resource = %running.state.resource, "what was seen of it is no evidence any more");
                self.ctx
                    .change(|graph, follow_ups| graph.invalidate_monitor(running.monitor, follow_ups));
            }
        }
    }

    fn count_failures(&mut self) {
        let failures = self.discovery.failures();
        self.ctx.metrics.sync_errors.inc_by(failures - self.failures);
        self.failures = failures;
    }

    /// Starts what is new, and lets go what is no longer served.
    fn follow(&mut self, served: &ServedResources) {
        let ignored = &self.ctx.settings.ignored;
        if self.running.is_empty() {
            let is_served = |name: &String| served.preferred(&[]).any(|known| resource_name(known) == *name);
            for name in ignored.iter().filter(|name| !is_served(name)) {
                tracing::warn!(
                    resource = name,
                    "--gc-ignore-resources names what is not served: nothing is ignored by it"
                );
            }
        }
        let wanted = served
            .preferred(VERBS)
            .filter(|resource| !ignored.contains(&resource_name(resource)));
        let wanted: HashMap<_, _> = wanted.map(|resource| (id(resource), resource)).collect();
        let gone: Vec<_> = self
            .running
            .iter()
            .filter(|(id, running)| {
                wanted
                    .get(*id)
                    .is_none_or(|resource| **resource != running.state.resource)
            })
            .map(|(id, _)| id.clone())
            .collect();
        let until = Instant::now() + LEAVE;
        for id in gone {
            if let Some(running) = self.running.remove(&id) {
                tracing::info!(resource = %running.state.resource, "no longer collected");
                self.leaving.push((until, running));
            }
        }
        for (id, resource) in wanted {
            if let Some(running) = self.running.get_mut(&id) {
                running.wake.notify_waiters();
            } else {
                let running = self.returned(resource).unwrap_or_else(|| self.start(resource));
                self.running.insert(id, running);
            }
        }
        let states = self.running.values().map(|running| running.state.clone()).collect();
        self.ctx.watched.send_replace(states);
        self.ctx.retry_unknown();
    }

    /// The watch of a resource that is served again before it was let go.
    fn returned(&mut self, resource: &Resource) -> Option<Running> {
        let mut leaving = self.leaving.iter();
        let place = leaving.position(|(_, running)| running.state.resource == *resource)?;
        Some(self.leaving.swap_remove(place).1)
    }

    fn start(&mut self, resource: &Resource) -> Running {
        tracing::debug!(%resource, "collected from now on");
        let monitor = self
            .ctx
            .change(|graph, _| graph.add_monitor(&resource.api_version(), &resource.kind));
        let state = MonitorState {
            resource: resource.clone(),
            complete: Arc::default(),
            reporter: StatusReporter::default(),
            stale_after: self.informer_config.stale_after(),
        };
        let wake = Arc::<Notify>::default();
        let reflector_config = ReflectorConfig {
            client: self.ctx.client.clone(),
            watch: Watch::all(resource.clone()),
            page_size: self.informer_config.page_size,
            idle_timeout: self.informer_config.idle_timeout,
            reporter: state.reporter.clone(),
            wake: Arc::clone(&wake),
            definition_deleted: Arc::default(),
            terms: self.never.clone(),
            is_optional: true,
        };
        let tap = GraphSink {
            ctx: Arc::clone(&self.ctx),
            monitor,
            complete: Arc::clone(&state.complete),
            listing: false,
            follow_ups: FollowUps::default(),
        };
        let span = tracing::info_span!("monitor", %resource);
        Running {
            task: self.loops.spawn(reflect(reflector_config, tap).instrument(span)),
            state,
            monitor,
            wake,
        }
    }

    /// Ends the watches whose time has come.
    async fn leave(&mut self, now: Instant) {
        let (due, later): (Vec<_>, Vec<_>) = self.leaving.drain(..).partition(|(until, _)| *until <= now);
        self.leaving = later;
        for (_, running) in &due {
            running.task.abort();
        }
        // Only then: an event that is still on its way must not be taken for one of whoever gets the monitor's number next.
        while due.iter().any(|(_, running)| !running.task.is_finished()) && self.loops.join_next().await.is_some() {}
        for (_, running) in due {
            self.ctx
                .change(|graph, follow_ups| graph.remove_monitor(running.monitor, follow_ups));
        }
    }
}

fn id(resource: &Resource) -> (String, String) {
    (resource.plural.to_string(), resource.group.to_string())
}

/// As `--gc-ignore-resources` names it.
pub(super) fn resource_name(resource: &Resource) -> String {
    if resource.group.is_empty() {
        resource.plural.to_string()
    } else {
        format!("{}.{}", resource.plural, resource.group)
    }
}

/// Where the events of one watch go.
struct GraphSink {
    ctx: Arc<CollectorContext>,
    monitor: Monitor,
    complete: Arc<AtomicBool>,
    /// A list is under way. Until it is complete nothing is done about it: only then is it known whether versions have gone back.
    listing: bool,
    follow_ups: FollowUps,
}

/// What a list has shown that was not completed is not lost with its watch.
impl Drop for GraphSink {
    fn drop(&mut self) {
        self.ctx.enqueue(&mut self.follow_ups);
    }
}

impl Sink for GraphSink {
    type Object = PartialObject;

    fn apply(&mut self, event: Event<PartialObject>) {
        let began = Instant::now();
        // A list that was given up leaves what it has shown: it is not waited for the next one, which may never be complete.
        let is_given_up = self.listing && matches!(event, Event::Relisting);
        let (monitor, follow_ups) = (self.monitor, &mut self.follow_ups);
        let mut graph = self.ctx.graph.lock();
        let entered = Instant::now();
        match event {
            Event::Relisting => {
                graph.begin_list(monitor);
                self.listing = true;
            }
            Event::Listed(seen) | Event::Applied(seen) => graph.observe(monitor, &seen, follow_ups),
            Event::Deleted(seen) => graph.deleted(monitor, &seen, follow_ups),
            Event::Undecodable { uid, .. } => graph.keep_undecodable(monitor, &uid),
            Event::DeletedUndecodable(key) => {
                graph.deleted_by_name(monitor, key.namespace.as_deref(), &key.name, follow_ups);
            }
            Event::Synced => return,
        }
        drop(graph);
        self.ctx.changes.done(entered.duration_since(began), entered.elapsed());
        if is_given_up || !self.listing {
            self.ctx.enqueue(follow_ups);
        }
    }

    fn complete(&mut self, _term: u64, version: Option<&str>) {
        self.ctx
            .graph
            .lock()
            .complete_list(self.monitor, version, &mut self.follow_ups);
        self.listing = false;
        self.ctx.enqueue(&mut self.follow_ups);
        if !self.complete.swap(true, Ordering::Relaxed) {
            // Who waits for the first lists looks again.
            self.ctx.watched.send_modify(|_| {});
            self.ctx.retry_unknown();
        }
    }
}
