//! The watches: one for each served resource that can be collected.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_api::Resource;
use portreeve_client::ApiErrorKind;
use portreeve_garbagecollector_graph::Monitor;
use portreeve_informer::{Attachment, AttachmentStatus, Discovery, ServedResources, SharedWatches, Verb, Watch};
use tokio::time::{Instant, sleep_until};

use super::{CollectorContext, graph_sink::GraphSink};

/// The verbs that a resource must support to be collected.
const VERBS: &[Verb] = &[Verb::Delete, Verb::List, Verb::Watch];
/// The interval at which the loop checks whether resources may still be read.
const LOOK: Duration = Duration::from_secs(10);
/// How long a watch continues after its resource has left discovery, so that the last deletions
/// still arrive: nothing else proves that the objects of a deleted CustomResourceDefinition are
/// absent. The apiserver closes the watch a second after it has removed the definition.
const LEAVE: Duration = Duration::from_millis(500);

/// The state of the watch on one resource.
#[derive(Clone)]
pub(crate) struct MonitorState {
    pub(crate) resource: Resource,
    complete: Arc<AtomicBool>,
    /// Since when it has not been complete, if it is not.
    incomplete_since: Arc<Mutex<Instant>>,
    status: AttachmentStatus,
    stale_after: Duration,
}

impl MonitorState {
    /// Returns since when the resource, which is not synced, has not been.
    pub(crate) fn unsynced_since(&self, now: Instant) -> Instant {
        if self.complete.load(Ordering::Relaxed) {
            // It was lost a moment ago.
            now
        } else {
            *self.incomplete_since.lock()
        }
    }

    /// Returns whether every object of the resource has been seen, and the resource is not lost.
    pub(crate) fn is_synced(&self) -> bool {
        self.complete.load(Ordering::Relaxed) && !self.is_lost()
    }

    /// Returns why the watch has had no contact with the apiserver for too long, or `None`. What
    /// was seen of the resource may then be out of date.
    pub(crate) fn stale(&self, now: Instant) -> Option<String> {
        let age = now.saturating_duration_since(self.status.last_contact()?);
        (self.is_synced() && age > self.stale_after).then(|| {
            let failure = self.status.failure().map(|failure| failure.message);
            let reason = failure.as_deref().unwrap_or("the connection is silent");
            format!("{}, last contact {} s ago: {reason}", self.resource, age.as_secs())
        })
    }

    /// Returns whether the resource may no longer be read, or is not served. What was seen of it
    /// then proves nothing.
    fn is_lost(&self) -> bool {
        let failure = self.status.failure();
        failure.is_some_and(|failure| matches!(failure.kind, ApiErrorKind::Forbidden | ApiErrorKind::NotFound))
    }
}

/// Formats the resource and the reason why it is not synced.
impl fmt::Display for MonitorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failure = self.status.failure().map(|failure| failure.message);
        let reason = failure.as_deref().unwrap_or("the first list is not complete");
        write!(f, "{}: {reason}", self.resource)
    }
}

struct Running {
    state: MonitorState,
    monitor: Monitor,
    /// The resource in the version that is watched. It differs from the collected version if an
    /// informer reads another one, whose watch the collector shares.
    read_as: Resource,
    attachment: Attachment,
}

/// Starts and stops watches as discovery changes.
pub(crate) struct Monitors {
    ctx: Arc<CollectorContext>,
    discovery: Discovery,
    watches: SharedWatches,
    /// The running watches, by plural and group.
    running: BTreeMap<(String, String), Running>,
    /// The watches whose resources have left discovery, and the time at which each ends.
    leaving: Vec<(Instant, Running)>,
    failures: u64,
    /// Whether discovery has ever answered.
    has_discovered: bool,
}

impl Monitors {
    pub(crate) fn new(ctx: Arc<CollectorContext>, discovery: Discovery, watches: SharedWatches) -> Self {
        Self {
            ctx,
            discovery,
            watches,
            running: BTreeMap::new(),
            leaving: Vec::new(),
            failures: 0,
            has_discovered: false,
        }
    }

    pub(crate) async fn run(mut self) {
        let ctx = Arc::clone(&self.ctx);
        let mut served = ctx.served.clone();
        let mut is_changed = true;
        self.join_informers();
        loop {
            let present = served.borrow_and_update().clone();
            if let Some(present) = present {
                if is_changed {
                    self.follow(&present);
                }
                self.share_watches(&present);
            }
            self.count_failures();
            self.observe_stores();
            self.distrust();
            let next = self.leaving.iter().map(|(until, _)| *until).min();
            let due = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            is_changed = tokio::select! {
                changed = served.changed() => if changed.is_err() { return } else { true },
                () = due => {
                    self.leave(Instant::now());
                    false
                }
                went_back = ctx.store_history.went_back() => {
                    self.relist(&went_back);
                    false
                }
                () = tokio::time::sleep(LOOK) => false,
            };
        }
    }

    /// Attaches to the watches of informers before discovery has answered, so that their first
    /// lists also serve the graph. Discovery decides later which of these resources are
    /// collectable. Until then none is published, because the initial sync waits for every
    /// published resource.
    fn join_informers(&mut self) {
        for resource in self.watches.informer_resources() {
            let id = id(&resource);
            if !self.ctx.settings.ignored.contains(&resource_name(&resource)) && !self.running.contains_key(&id) {
                let running = self.start(&resource, resource.clone());
                self.running.insert(id, running);
            }
        }
    }

    /// Moves each monitor to the version that a synced informer reads, so that one watch serves
    /// both.
    fn share_watches(&mut self, served: &ServedResources) {
        let read = self.watches.synced_informer_resources();
        let all = self.watches.informer_resources();
        let mut is_moved = false;
        for running in self.running.values_mut() {
            let read_as = version_to_read(&running.state.resource, &read, served);
            // Keep the version of an informer that is not synced yet.
            let is_kept = all.contains(&running.read_as) && is_served(&running.read_as, served);
            if running.read_as != *read_as && (read.contains(read_as) || !is_kept) {
                // Detach the former sink first; otherwise two sinks of one monitor would mix their
                // lists.
                running.attachment.detach();
                self.ctx.graph.lock().disconnect(running.monitor);
                let sink = GraphSink::new(&self.ctx, running.monitor, read_as, &running.state.complete);
                running.attachment = self.watches.attach(Watch::all(read_as.clone()), sink);
                running.state.status = running.attachment.status();
                running.read_as = read_as.clone();
                is_moved = true;
            }
        }
        if is_moved {
            self.publish();
        }
    }

    /// Publishes the watched resources.
    fn publish(&self) {
        let states = self.running.values().map(|running| running.state.clone()).collect();
        self.ctx.watched.send_replace(states);
        // A resource for which owners wait may have gone.
        self.ctx.end_sync_waits();
    }

    /// Lists the resource of each of these monitors again, or all resources of the main store.
    fn relist(&self, went_back: &[Option<Monitor>]) {
        for running in self.running.values() {
            let is_meant = |monitor: &Option<Monitor>| match monitor {
                Some(monitor) => *monitor == running.monitor,
                None => !self.discovery.is_aggregated(&running.read_as),
            };
            if went_back.iter().any(is_meant) {
                running.attachment.relist();
            }
        }
    }

    /// Turns the nodes of resources that can no longer be read into virtual nodes. Attempts read
    /// them from the apiserver until the resources are listed again.
    fn distrust(&self) {
        for running in self.running.values() {
            if running.state.is_lost() && running.state.complete.swap(false, Ordering::Relaxed) {
                *running.state.incomplete_since.lock() = Instant::now();
                tracing::warn!(resource = %running.state.resource, "lost access to resource; its objects are read individually until it can be listed again");
                self.ctx
                    .change(|graph, follow_ups| graph.invalidate_monitor(running.monitor, follow_ups));
            }
        }
    }

    /// Records which resources an aggregated apiserver serves.
    fn observe_stores(&self) {
        for running in self.running.values() {
            let is_separate = self.discovery.is_aggregated(&running.read_as);
            self.ctx.graph.lock().set_separate(running.monitor, is_separate);
        }
    }

    fn count_failures(&mut self) {
        let failures = self.discovery.failures();
        self.ctx.metrics.sync_errors.inc_by(failures - self.failures);
        self.failures = failures;
    }

    /// Starts watches on new resources, and ends those on resources that are no longer served.
    fn follow(&mut self, served: &ServedResources) {
        let ignored = &self.ctx.settings.ignored;
        if !std::mem::replace(&mut self.has_discovered, true) {
            let is_served = |name: &String| served.preferred(&[]).any(|known| resource_name(known) == *name);
            for name in ignored.iter().filter(|name| !is_served(name)) {
                tracing::warn!(
                    resource = name,
                    "ignoring entry of --gc-ignore-resources: the resource is not served"
                );
            }
        }
        let wanted: HashMap<_, _> = collectable(served, ignored)
            .map(|resource| (id(resource), resource))
            .collect();
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
                tracing::info!(resource = %running.state.resource, "stopping collection of resource");
                self.leaving.push((until, running));
            }
        }
        let read = self.watches.informer_resources();
        for (id, resource) in wanted {
            if let Some(running) = self.running.get(&id) {
                running.attachment.wake();
            } else {
                let running = self.returned(resource);
                let running =
                    running.unwrap_or_else(|| self.start(resource, version_to_read(resource, &read, served).clone()));
                self.running.insert(id, running);
            }
        }
        self.publish();
        self.ctx.retry_unknown();
    }

    /// Returns the watch of a resource that is served again before its watch has ended.
    fn returned(&mut self, resource: &Resource) -> Option<Running> {
        let mut leaving = self.leaving.iter();
        let place = leaving.position(|(_, running)| running.state.resource == *resource)?;
        Some(self.leaving.swap_remove(place).1)
    }

    fn start(&self, resource: &Resource, read_as: Resource) -> Running {
        tracing::debug!(%resource, "starting collection of resource");
        let monitor = self
            .ctx
            .change(|graph, _| graph.add_monitor(&resource.api_version(), &resource.kind));
        let complete = Arc::default();
        let sink = GraphSink::new(&self.ctx, monitor, &read_as, &complete);
        let attachment = self.watches.attach(Watch::all(read_as.clone()), sink);
        let state = MonitorState {
            resource: resource.clone(),
            complete,
            incomplete_since: Arc::new(Mutex::new(Instant::now())),
            status: attachment.status(),
            stale_after: self.watches.stale_after(),
        };
        Running {
            state,
            monitor,
            read_as,
            attachment,
        }
    }

    /// Ends the watches whose grace period is over.
    fn leave(&mut self, now: Instant) {
        let (due, later): (Vec<_>, Vec<_>) = self.leaving.drain(..).partition(|(until, _)| *until <= now);
        self.leaving = later;
        for (_, running) in due {
            // Detach the sink first. Otherwise a late event could be attributed to the resource
            // that gets the monitor's number next.
            running.attachment.detach();
            self.ctx.store_history.forget(running.monitor);
            let resource = &running.state.resource;
            let is_served = self.ctx.is_kind_served(resource);
            let unknown = self.ctx.change(|graph, follow_ups| {
                let unknown = if is_served {
                    0
                } else {
                    graph.doubt_owners(running.monitor, follow_ups)
                };
                graph.remove_monitor(running.monitor, follow_ups);
                unknown
            });
            if unknown > 0 {
                tracing::warn!(
                    %resource,
                    owners = unknown,
                    "keeping the dependents of objects whose kind is no longer served"
                );
            }
            // Proofs about the kind no longer rest on its watch, which may have ended before.
            self.ctx.retry_unknown();
        }
    }
}

/// Returns the served resources that are collected.
pub(super) fn collectable<'a>(
    served: &'a ServedResources,
    ignored: &HashSet<String>,
) -> impl Iterator<Item = &'a Resource> {
    let all = served.preferred(VERBS);
    all.filter(|resource| !ignored.contains(&resource_name(resource)))
}

/// Returns whether the resource is served in this version.
fn is_served(resource: &Resource, served: &ServedResources) -> bool {
    served.lookup(&resource.api_version(), &resource.kind) == Some(resource)
}

/// Returns the version of `resource` to read: one that an informer reads, if it is served, or the
/// version that is collected.
fn version_to_read<'a>(resource: &'a Resource, read: &'a [Resource], served: &ServedResources) -> &'a Resource {
    let same = read
        .iter()
        .filter(|read| read.plural == resource.plural && read.group == resource.group);
    let shared: Vec<_> = same.filter(|read| is_served(read, served)).collect();
    if shared.contains(&resource) {
        return resource;
    }
    // The same version each time, if informers read several.
    shared
        .into_iter()
        .min_by_key(|read| read.version.clone())
        .unwrap_or(resource)
}

fn id(resource: &Resource) -> (String, String) {
    (resource.plural.to_string(), resource.group.to_string())
}

/// Returns the name of a resource as `--gc-ignore-resources` gives it.
pub(super) fn resource_name(resource: &Resource) -> String {
    if resource.group.is_empty() {
        resource.plural.to_string()
    } else {
        format!("{}.{}", resource.plural, resource.group)
    }
}
