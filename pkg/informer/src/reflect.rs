//! The list-and-watch loop, the only async part of an informer.
//!
//! The loop follows client-go's reflector. kube-runtime's `watcher` retries an HTTP 410 forever,
//! loses a whole list to one bad object, and may start from a stale cache.

mod error;

use std::{
    future::{Future, pending},
    hash::{DefaultHasher, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_client::{ApiErrorKind, error_chain, refusal, retry_after};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use self::error::{Error, MAX_LINE};
use crate::{
    Event, StatusReporter, Watch, WatchFailure, WatchedObject,
    backoff::Backoff,
    protocol::{self, Lines, Page, WatchMessage},
    watch::Query,
};

/// The number of attempts for a page before the list starts over.
const PAGE_ATTEMPTS: u32 = 5;
/// A watch that ends sooner than this and without a line is a failure: an apiserver that shuts down
/// ends watches as soon as they open.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// The number of consecutive watches that are accepted and end early without a line, after which
/// the loop lists again. Even with the longest backoff, this takes less time than the default
/// `stale_after`.
const MAX_EARLY_ENDS: u32 = 3;
/// The initial silence limit (see `silence_limit`), in doublings of the idle timeout: 6 min by
/// default.
const INITIAL_DOUBLINGS: u32 = 2;
/// The longest silence limit, reached while nothing changes: 24 min by default.
const MAX_DOUBLINGS: u32 = 4;
/// A watch that lasted this long resets the backoff.
const GOOD_WATCH: Duration = Duration::from_secs(10);

/// The receiver of a loop's events: a store, or another model.
pub trait Sink: Send + 'static {
    /// The type into which the loop decodes objects.
    type Object: WatchedObject;

    /// Applies one event. Must not block, because the loop reads nothing from the connection in the
    /// meantime. After a panic the loop lists everything again.
    fn apply(&mut self, event: Event<Self::Object>);

    /// Called when a list that started in `term` is complete and all its objects are applied.
    ///
    /// The list is consistent as of `version`. `None` means that the CRD of the resource was
    /// deleted, and all objects with it.
    fn complete(&mut self, _term: u64, _version: Option<&str>) {}
}

/// The configuration of one loop.
pub struct ReflectorConfig {
    /// The client for the apiserver.
    pub client: Client,
    /// The objects to list and watch.
    pub watch: Watch,
    /// The number of objects in one page of a list.
    pub page_size: u32,
    /// How long the watch may receive nothing before the loop reconnects.
    pub idle_timeout: Duration,
    /// The status that the loop updates.
    pub reporter: StatusReporter,
    /// Wakes the loop while it waits for a resource that is not served. Use `notify_waiters`.
    pub wake: Arc<Notify>,
    /// Set when the CRD of the resource was deleted. If the resource is then not served either, the
    /// loop treats its objects as deleted. After a 404 alone, it keeps them.
    pub definition_deleted: Arc<AtomicBool>,
    /// The current term. Each new term starts a new list (see [`crate::Cache::begin_term`]).
    pub terms: watch::Receiver<u64>,
    /// Whether the resource may be absent. The loop then does not warn when it is not served.
    pub is_optional: bool,
}

/// Lists, then watches, and recovers from all failures, until the future is dropped.
///
/// The first list is a quorum read (no resourceVersion). A watch that ends resumes after the last
/// received version; when that version has expired (event or HTTP status), the loop lists again.
/// Failures back off with jitter.
pub fn reflect<S: Sink>(config: ReflectorConfig, sink: S) -> impl Future<Output = ()> + Send {
    let mut reflector = Reflector {
        backoff: Backoff::new(),
        unpaged: false,
        has_listed: false,
        is_list_failing: false,
        lines: 0,
        silent_since: Instant::now(),
        last_list_hash: None,
        doublings: INITIAL_DOUBLINGS,
        term: 0,
        config,
        sink,
    };
    let mut terms = reflector.config.terms.clone();
    async move {
        loop {
            reflector.term = *terms.borrow_and_update();
            tokio::select! {
                () = reflector.list_and_watch() => {}
                () = next_term(&mut terms) => {}
            }
        }
    }
}

/// Waits for the next term.
async fn next_term(terms: &mut watch::Receiver<u64>) {
    // An error means that the sender was dropped, so no further term can begin.
    if terms.changed().await.is_err() {
        pending::<()>().await;
    }
}

struct Reflector<S> {
    config: ReflectorConfig,
    sink: S,
    backoff: Backoff,
    /// Whether to request the next list without pages, because a list expired between its pages.
    unpaged: bool,
    /// Whether a list has ever completed.
    has_listed: bool,
    /// Whether a list has failed since the last complete list. Then only the last page of a list
    /// counts as contact.
    is_list_failing: bool,
    /// The number of lines that the last watch sent.
    lines: usize,
    /// The time of the last line or the last complete list.
    silent_since: Instant,
    /// The hash of the last list, until a line reports a change.
    last_list_hash: Option<u64>,
    /// The current silence limit, in doublings of the idle timeout.
    doublings: u32,
    term: u64,
}

impl<S: Sink> Reflector<S> {
    /// Lists once and then watches until the next list is needed. May be dropped at any point,
    /// because the next call begins with a list.
    async fn list_and_watch(&mut self) {
        let wake = Arc::clone(&self.config.wake);
        // Listen before the request, so that a wake during the request is not missed. A wake during
        // a watch is dropped.
        let woken = wake.notified();
        match self.list().await {
            Ok(version) => {
                drop(woken);
                self.is_list_failing = false;
                self.watch_until_list(version).await;
            }
            Err(Error::ListExpired) => {}
            Err(error) => {
                self.is_list_failing = true;
                self.remove_with_crd(&error);
                self.back_off(&error, woken).await;
            }
        }
    }

    /// Lists all objects into the sink and returns the version from which to watch.
    async fn list(&mut self) -> Result<String, Error> {
        let unpaged = std::mem::take(&mut self.unpaged);
        let limit = (!unpaged).then_some(self.config.page_size);
        self.apply(Event::Relisting)?;
        let mut next: Option<String> = None;
        let mut content = DefaultHasher::new();
        loop {
            let bytes = self.page(limit, next.as_deref()).await?;
            let page = Page::read(&bytes).map_err(Error::Decode)?;
            for raw in page.items.into_iter().flatten() {
                content.write(raw.get().as_bytes());
                self.apply(protocol::decode_item(raw))?;
            }
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() || !self.is_list_failing {
                self.config.record_contact();
            }
            if next.is_none() {
                self.apply(Event::Synced)?;
                let version = page.metadata.resource_version.unwrap_or_default();
                self.sink.complete(self.term, Some(&version));
                self.has_listed = true;
                self.adapt_silence_limit(content.finish());
                return Ok(version);
            }
        }
    }

    /// Compares a list with the previous one and adapts the silence limit.
    ///
    /// If objects changed without a line on the watch, something withholds events, and the limit
    /// drops to one idle timeout. If nothing changed, the limit doubles, because not every
    /// apiserver sends bookmarks for an unchanged resource.
    fn adapt_silence_limit(&mut self, content: u64) {
        match self.last_list_hash.replace(content) {
            Some(before) if before != content => self.doublings = 0,
            Some(_) => self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS),
            None => {}
        }
        self.silent_since = Instant::now();
    }

    /// Requests one page and returns its bytes. Retries every page but the first, because the
    /// previous pages are already applied.
    async fn page(&mut self, limit: Option<u32>, next: Option<&str>) -> Result<Bytes, Error> {
        for _ in 1..PAGE_ATTEMPTS {
            match self.try_page(limit, next).await {
                Err(error) if next.is_some() && error.is_transient() => self.back_off(&error, pending()).await,
                done => return done,
            }
        }
        self.try_page(limit, next).await
    }

    async fn try_page(&mut self, limit: Option<u32>, next: Option<&str>) -> Result<Bytes, Error> {
        let mut query = Query::new(&self.config.watch);
        if let Some(limit) = limit {
            query.add("limit", &limit.to_string());
        }
        if let Some(next) = next {
            query.add("continue", next);
        }
        let response = self.config.send::<S::Object>(query, "List").await.map_err(Error::List);
        let response = match response {
            Err(error) if error.kind() == ApiErrorKind::Expired && next.is_some() && limit.is_some() => {
                self.unpaged = true;
                return Err(Error::ListExpired);
            }
            response => response?,
        };
        let body = response.into_body().collect().await;
        Ok(body.map_err(|source| Error::Read(source.into()))?.to_bytes())
    }

    /// Watches from `version`, and reconnects as often as necessary, until a list is needed.
    async fn watch_until_list(&mut self, mut version: String) {
        let since_list = Instant::now();
        // The number of consecutive watches that were accepted and ended early without a line.
        let mut early_ends = 0;
        let mut was_accepted = true;
        loop {
            let started = Instant::now();
            let ended = self.watch(&mut version, early_ends == 0 || !was_accepted).await;
            let lasted = started.elapsed();
            // A watch that is silent until the idle timeout counts as good.
            let is_good = lasted >= GOOD_WATCH.min(self.config.idle_timeout);
            was_accepted = self.lines > 0 || !matches!(ended, Err(Error::Watch(_)));
            early_ends = match ended {
                _ if self.lines > 0 || is_good => 0,
                Ok(()) if lasted >= SHORT_WATCH => 0,
                _ if was_accepted => early_ends + 1,
                _ => early_ends,
            };
            let is_silent = self.lines == 0 && was_accepted && self.silent_since.elapsed() >= self.silence_limit();
            if is_good {
                self.backoff = Backoff::new();
            }
            let error = match ended {
                Ok(()) if self.lines > 0 || lasted >= SHORT_WATCH => {
                    self.backoff = Backoff::new();
                    if is_silent {
                        return;
                    }
                    continue;
                }
                Ok(()) => Error::EndedAtOnce,
                Err(error) => error,
            };
            if error.kind() == ApiErrorKind::Expired {
                tracing::debug!(version, "relisting after expired version");
                // Back off if a version expires right after its list, to avoid a loop of lists.
                if since_list.elapsed() < GOOD_WATCH {
                    self.back_off(&error, pending()).await;
                }
                return;
            }
            self.back_off(&error, pending()).await;
            if error.requires_list() || is_silent || early_ends >= MAX_EARLY_ENDS {
                return;
            }
        }
    }

    /// Returns how long watches may send no line before the loop lists again, to detect withheld
    /// events.
    fn silence_limit(&self) -> Duration {
        self.config.idle_timeout * (1 << self.doublings)
    }

    /// Sends one watch request and applies its lines. Returns `Ok` when the apiserver ends the
    /// watch. Each line counts as contact. The response itself counts if `is_contact`.
    async fn watch(&mut self, version: &mut String, is_contact: bool) -> Result<(), Error> {
        self.lines = 0;
        let mut query = Query::new(&self.config.watch);
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        query.add("resourceVersion", version);
        query.add("timeoutSeconds", &fastrand::u32(300..600).to_string());
        let response = self.config.send::<S::Object>(query, "").await.map_err(Error::Watch)?;
        if is_contact {
            self.config.record_contact();
        }
        let mut body = response.into_body();
        let idle_timeout = self.config.idle_timeout;
        let mut lines = Lines::default();
        let mut last_line = Instant::now();
        loop {
            // Only complete lines count as contact, not bytes that never form a line.
            let frame = match timeout_at(last_line + idle_timeout, body.frame()).await {
                Err(_) => return Err(Error::Silent(idle_timeout)),
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame.map_err(|source| Error::Read(source.into()))?,
            };
            let Ok(data) = frame.into_data() else { continue };
            lines.push(&data);
            while let Some(line) = lines.next() {
                self.config.record_contact();
                last_line = Instant::now();
                self.silent_since = last_line;
                self.lines += 1;
                self.handle_line(&line, version)?;
            }
            if lines.unfinished() > MAX_LINE {
                return Err(Error::LineTooLong);
            }
        }
    }

    fn handle_line(&mut self, line: &[u8], version: &mut String) -> Result<(), Error> {
        let next = match protocol::decode_line(line).map_err(Error::Decode)? {
            WatchMessage::Event { event, version } => {
                self.last_list_hash = None;
                self.apply(event)?;
                version
            }
            WatchMessage::Bookmark { version } => version,
            WatchMessage::Failed(status) => return Err(Error::Watch(kube::Error::Api(status))),
        };
        if let Some(next) = next {
            *version = next;
        }
        Ok(())
    }

    /// Passes an event to the sink. A panic of the sink becomes an error, after which the loop
    /// lists again.
    fn apply(&mut self, event: Event<S::Object>) -> Result<(), Error> {
        if let Event::Undecodable { key, error, .. } = &event {
            tracing::warn!(object = %key, error, "skipping undecodable object");
        }
        catch_unwind(AssertUnwindSafe(|| self.sink.apply(event))).map_err(|_| {
            tracing::error!("relisting because the sink panicked");
            Error::Panicked
        })
    }

    /// Removes all objects if the resource is not served and its CRD was deleted. Before the first
    /// complete list there is nothing to remove, and the informer must not count as synced.
    fn remove_with_crd(&mut self, error: &Error) {
        if error.kind() == ApiErrorKind::NotFound
            && self.has_listed
            && self.config.definition_deleted.swap(false, Ordering::Relaxed)
        {
            tracing::info!("removing all objects because their definition was deleted");
            // After a panic, restore the flag, so that the next 404 tries again.
            let removed = self.apply(Event::Relisting).and_then(|()| self.apply(Event::Synced));
            match removed {
                Ok(()) => self.sink.complete(self.term, None),
                Err(_) => self.config.definition_deleted.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Records the failure and waits, at least as long as the apiserver asks. A wake ends the wait
    /// only if the resource is not served.
    async fn back_off(&mut self, error: &Error, woken: impl Future<Output = ()>) {
        let failure = WatchFailure {
            kind: error.kind(),
            message: error_chain(error),
        };
        let requested = error.cause().and_then(retry_after).unwrap_or_default();
        let delay = self.backoff.wait().max(requested);
        let (reason, is_absent) = (failure.message.clone(), failure.kind == ApiErrorKind::NotFound);
        let resource = &self.config.watch;
        let is_new = error.is_reported() && self.config.reporter.record_failure(failure);
        match (is_new, is_absent) {
            (true, true) if !self.config.is_optional => {
                tracing::warn!(%resource, reason, "waiting for the resource to be served");
            }
            (true, false) => tracing::warn!(%resource, reason, "retrying failed watch"),
            _ => tracing::debug!(%resource, reason, ?delay, "backing off"),
        }
        let is_absent = is_absent && requested.is_zero();
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = woken, if is_absent => self.backoff = Backoff::new(),
        }
    }
}

impl ReflectorConfig {
    /// Records that the apiserver responded or sent data.
    fn record_contact(&self) {
        if self.reporter.record_contact(Instant::now()) {
            tracing::info!(resource = %self.watch, "resumed watch");
        }
    }

    /// Sends a GET request and turns an unsuccessful response into an error.
    ///
    /// `suffix` is appended to the kind `PartialObjectMetadata` in the `Accept` header: `List` for
    /// a list, empty for a watch. A watch that requests `PartialObjectMetadataList` would fail at
    /// its first event.
    async fn send<T: WatchedObject>(&self, query: Query, suffix: &str) -> Result<http::Response<Body>, kube::Error> {
        let mut request = Request::get(query.into_path());
        if T::METADATA_ONLY {
            let accept =
                format!("application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1,application/json");
            request = request.header(header::ACCEPT, accept);
        }
        let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
        let response = self.client.send(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response).await)
    }
}

#[cfg(test)]
mod tests;
