//! Watches that wait for changes.

use std::collections::HashSet;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{Stream, StreamExt};
use kube::Api;
use kube::api::{DynamicObject, ListParams, WatchEvent, WatchParams};
use tokio::task::JoinSet;
use tokio::time::timeout;

type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Send>>;

/// A change of an object.
pub(crate) struct Change {
    pub(crate) object: DynamicObject,
    pub(crate) is_deleted: bool,
}

/// A watch of the changes from now on. When the apiserver ends the watch, because the client reads
/// too slowly or the watch is old, it is restarted at the last received version.
pub(crate) struct Watch {
    api: Api<DynamicObject>,
    params: WatchParams,
    /// The last version that was received.
    version: String,
    events: Events,
}

impl Watch {
    pub(crate) async fn start(api: &Api<DynamicObject>, params: WatchParams) -> Result<Self> {
        let now = api.list_metadata(&ListParams::default().limit(1)).await;
        let now = now.context("failed to list the objects to watch")?.metadata;
        let version = now.resource_version.context("a list has no version")?;
        Ok(Self {
            events: events(api, &params, &version).await?,
            api: api.clone(),
            params,
            version,
        })
    }

    pub(crate) async fn next(&mut self) -> Result<Change> {
        loop {
            let Some(event) = self.events.next().await else {
                self.events = events(&self.api, &self.params, &self.version).await?;
                continue;
            };
            let (object, is_deleted) = match event.context("a watch failed")? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(bookmark) => {
                    self.version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => bail!("the apiserver rejected a watch: {}", status.message),
            };
            self.version = object.metadata.resource_version.clone().unwrap_or_default();
            return Ok(Change { object, is_deleted });
        }
    }

    /// Calls `is_last` with each change until it returns true.
    pub(crate) fn until(
        mut self,
        limit: Duration,
        mut is_last: impl FnMut(Change) -> Result<bool> + Send + 'static,
    ) -> Awaited {
        let last = async move {
            while !is_last(self.next().await?)? {}
            Ok(Instant::now())
        };
        let mut task = JoinSet::new();
        task.spawn(async move { within(limit, "the last change", last).await });
        Awaited(task)
    }

    /// Waits until a number of objects satisfy a condition. Objects that already exist do not count
    /// unless they change.
    pub(crate) fn until_all(self, limit: Duration, count: usize, is_done: fn(&DynamicObject) -> bool) -> Awaited {
        let mut done = HashSet::with_capacity(count);
        self.until(limit, move |change| {
            if !change.is_deleted && is_done(&change.object) {
                done.insert(change.object.metadata.name);
            }
            Ok(done.len() >= count)
        })
    }
}

/// A watch in its own task, so that it and the measured work do not wait for each other.
pub(crate) struct Awaited(JoinSet<Result<Instant>>);

impl Awaited {
    /// Returns the seconds from `since` until the watch received the last change.
    pub(crate) async fn last(mut self, since: Instant) -> Result<f64> {
        let last = self.0.join_next().await.context("the watch has no task")???;
        Ok(last.saturating_duration_since(since).as_secs_f64())
    }
}

async fn events(api: &Api<DynamicObject>, params: &WatchParams, version: &str) -> Result<Events> {
    let events = api.watch(params, version).await;
    Ok(Box::pin(events.context("failed to start a watch")?))
}

/// Waits with a limit. `what` completes the message "timed out waiting for".
pub(crate) async fn within<T>(limit: Duration, what: &str, wait: impl Future<Output = Result<T>>) -> Result<T> {
    let waited = timeout(limit, wait).await;
    waited.with_context(|| format!("timed out after {limit:?} waiting for {what}"))?
}
