//! Applies the events of one watch to the graph.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use portreeve_api::Resource;
use portreeve_garbagecollector_graph::{FollowUps, Monitor};
use portreeve_informer::{Event, Sink};
use tokio::time::Instant;

use super::{CollectorContext, watched_object::WatchedPartialObject};

/// The sink of one watch.
pub(super) struct GraphSink {
    ctx: Arc<CollectorContext>,
    monitor: Monitor,
    /// The resource in the version that is watched.
    resource: Resource,
    complete: Arc<AtomicBool>,
    /// Whether a list is in progress. Its follow-ups are queued when it is complete, because only
    /// then is it known whether resourceVersions have decreased.
    listing: bool,
    follow_ups: FollowUps,
}

/// Queues the follow-ups of an incomplete list when its watch ends.
impl Drop for GraphSink {
    fn drop(&mut self) {
        self.ctx.enqueue(&mut self.follow_ups);
    }
}

impl GraphSink {
    pub(super) fn new(
        ctx: &Arc<CollectorContext>,
        monitor: Monitor,
        resource: &Resource,
        complete: &Arc<AtomicBool>,
    ) -> Self {
        Self {
            ctx: Arc::clone(ctx),
            monitor,
            resource: resource.clone(),
            complete: Arc::clone(complete),
            listing: false,
            follow_ups: FollowUps::default(),
        }
    }
}

impl Sink for GraphSink {
    type Object = WatchedPartialObject;

    fn apply(&mut self, event: Event<WatchedPartialObject>) {
        let began = Instant::now();
        // The reflector has given up a list. Queue its follow-ups now: the next list may never be
        // complete.
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
        let has_decreased = self
            .ctx
            .graph
            .lock()
            .complete_list(self.monitor, version, &mut self.follow_ups);
        self.listing = false;
        self.ctx.enqueue(&mut self.follow_ups);
        if has_decreased {
            self.ctx
                .versions_decreased(Some(self.monitor), &self.resource.to_string());
        }
        // Without a version, the resource is not served: nothing has been listed.
        if version.is_some() && !self.complete.swap(true, Ordering::Relaxed) {
            // Wake those who wait for the first lists.
            self.ctx.watched.send_modify(|_| {});
            self.ctx.retry_unknown();
            self.ctx.listed(&self.resource);
            self.ctx.end_sync_waits();
        }
    }

    fn disconnected(&mut self) {
        self.ctx.graph.lock().disconnect(self.monitor);
    }

    fn resumed(&mut self) {
        self.ctx.graph.lock().resume(self.monitor);
        self.ctx.store_history.resumed(self.monitor, &self.resource);
    }
}
