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

use self::error::{Error, LONGEST_LINE};
use crate::{
    Event, StatusReporter, Watch, WatchFailure, WatchedObject,
    backoff::Backoff,
    protocol::{self, Lines, Page, WatchMessage},
    watch::Query,
};

/// The attempts per page before the list starts over.
const PAGE_ATTEMPTS: u32 = 5;
/// A watch that ended sooner and without a line is a failure: an apiserver that shuts down ends
/// watches as soon as they open.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// The number of consecutive watches that are accepted and end early without a line before the loop
/// lists again. Even with the longest backoff, this is sooner than the default `stale_after`.
const MAX_EARLY_ENDS: u32 = 3;
/// The initial silence limit, in doublings of the idle timeout: 6 min by default.
const INITIAL_DOUBLINGS: u32 = 2;
/// The longest silence limit, reached while nothing changes: 24 min by default.
const MAX_DOUBLINGS: u32 = 4;
/// A watch that lasted this long resets the backoff.
const GOOD_WATCH: Duration = Duration::from_secs(10);

/// The receiver of a loop's events: a store, or another model.
pub trait Sink: Send + 'static {
    /// The type into which the loop decodes objects.
    type Object: WatchedObject;

    /// Applies one event. Must not block, because the connection waits meanwhile. After a panic the
    /// loop lists everything again.
    fn apply(&mut self, event: Event<Self::Object>);

    /// Called when a list that started in `term` is complete and all its objects are applied.
    ///
    /// The list is consistent as of `version`. Without a version, the definition of the resource
    /// was deleted, and all objects with it.
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
    /// Set when a known definition of the resource was deleted. If the resource is then not served
    /// either, the loop treats its objects as deleted. A 404 alone keeps them.
    pub definition_deleted: Arc<AtomicBool>,
    /// The current term. Each new one starts a new list (see [`crate::Cache::begin_term`]).
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
        whole: false,
        listed: false,
        lists_fail: false,
        lines: 0,
        silent_since: Instant::now(),
        known: None,
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
                () = changed(&mut terms) => {}
            }
        }
    }
}

/// Waits for the next term.
async fn changed(terms: &mut watch::Receiver<u64>) {
    // The sender is dropped, so no further term can begin.
    if terms.changed().await.is_err() {
        pending::<()>().await;
    }
}

struct Reflector<S> {
    config: ReflectorConfig,
    sink: S,
    backoff: Backoff,
    /// A list expired between its pages. The next list is requested without pages, once.
    whole: bool,
    /// A list has completed at least once.
    listed: bool,
    /// A list has failed since the last complete one, so first pages do not count as contact.
    lists_fail: bool,
    /// The number of lines from the last watch.
    lines: usize,
    /// When the last line arrived or the last list completed.
    silent_since: Instant,
    /// The hash of the last list, until a line reports a change.
    known: Option<u64>,
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
                self.lists_fail = false;
                self.follow(version).await;
            }
            Err(Error::ListExpired) => {}
            Err(error) => {
                self.lists_fail = true;
                self.note_absence(&error);
                self.back_off(&error, woken).await;
            }
        }
    }

    /// Lists all objects into the sink and returns the version from which to watch.
    async fn list(&mut self) -> Result<String, Error> {
        let whole = std::mem::take(&mut self.whole);
        let limit = (!whole).then_some(self.config.page_size);
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
            if next.is_none() || !self.lists_fail {
                self.config.record_contact();
            }
            if next.is_none() {
                self.apply(Event::Synced)?;
                let version = page.metadata.resource_version.unwrap_or_default();
                self.sink.complete(self.term, Some(&version));
                self.listed = true;
                self.compare(content.finish());
                return Ok(version);
            }
        }
    }

    /// Compares a list with the previous one and adapts the silence limit.
    ///
    /// If objects changed without a line, something withholds events, and the limit drops to one
    /// idle timeout. If nothing changed, the limit doubles, because not every server sends
    /// bookmarks for an unchanged resource.
    fn compare(&mut self, content: u64) {
        match self.known.replace(content) {
            Some(before) if before != content => self.doublings = 0,
            Some(_) => self.doublings = (self.doublings + 1).min(MAX_DOUBLINGS),
            None => {}
        }
        self.silent_since = Instant::now();
    }

    /// Returns the bytes of one page. Retries a page after the first, because the previous pages
    /// are already applied.
    async fn page(&mut self, limit: Option<u32>, next: Option<&str>) -> Result<Bytes, Error> {
        for _ in 1..PAGE_ATTEMPTS {
            match self.try_page(limit, next).await {
                Err(error) if next.is_some() && error.may_pass() => self.back_off(&error, pending()).await,
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
        let answer = self.config.send::<S::Object>(query, "List").await.map_err(Error::List);
        let answer = match answer {
            Err(error) if error.kind() == ApiErrorKind::Expired && next.is_some() && limit.is_some() => {
                self.whole = true;
                return Err(Error::ListExpired);
            }
            answer => answer?,
        };
        let body = answer.into_body().collect().await;
        Ok(body.map_err(|source| Error::Read(source.into()))?.to_bytes())
    }

    /// Watches from `version`, across reconnects, until a list is needed.
    async fn follow(&mut self, mut version: String) {
        let since_list = Instant::now();
        // The number of consecutive watches that were accepted and ended early without a line.
        let mut early_ends = 0;
        let mut was_answered = true;
        loop {
            let started = Instant::now();
            let ended = self.watch(&mut version, early_ends == 0 || !was_answered).await;
            let lasted = started.elapsed();
            // Silence until the idle timeout is no failure of the apiserver.
            let is_good = lasted >= GOOD_WATCH.min(self.config.idle_timeout);
            was_answered = self.lines > 0 || !matches!(ended, Err(Error::Watch(_)));
            early_ends = match ended {
                _ if self.lines > 0 || is_good => 0,
                Ok(()) if lasted >= SHORT_WATCH => 0,
                _ if was_answered => early_ends + 1,
                _ => early_ends,
            };
            let is_silent = self.lines == 0 && was_answered && self.silent_since.elapsed() >= self.silence_limit();
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
            if error.calls_for_list() || is_silent || early_ends >= MAX_EARLY_ENDS {
                return;
            }
        }
    }

    /// Returns how long watches may bring no line before the loop lists again, to detect withheld
    /// events.
    fn silence_limit(&self) -> Duration {
        self.config.idle_timeout * (1 << self.doublings)
    }

    /// Sends one watch request and applies its lines. Returns `Ok` when the apiserver ends the
    /// watch. Each line counts as contact, and the response does if `is_contact`.
    async fn watch(&mut self, version: &mut String, is_contact: bool) -> Result<(), Error> {
        self.lines = 0;
        let mut query = Query::new(&self.config.watch);
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        query.add("resourceVersion", version);
        query.add("timeoutSeconds", &fastrand::u32(300..600).to_string());
        let answer = self.config.send::<S::Object>(query, "").await.map_err(Error::Watch)?;
        if is_contact {
            self.config.record_contact();
        }
        let mut body = answer.into_body();
        let idle_timeout = self.config.idle_timeout;
        let mut lines = Lines::default();
        let mut last_line = Instant::now();
        loop {
            // Only whole lines count as contact. Bytes that never form a line do not.
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
            if lines.unfinished() > LONGEST_LINE {
                return Err(Error::Endless);
            }
        }
    }

    fn handle_line(&mut self, line: &[u8], version: &mut String) -> Result<(), Error> {
        let next = match protocol::decode_line(line).map_err(Error::Decode)? {
            WatchMessage::Event { event, version } => {
                self.known = None;
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

    /// Passes an event to the sink and turns its panic into an error, so that the task survives and
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

    /// Removes all objects of a resource that is not served and whose definition was deleted.
    /// Before the first list there is nothing to remove, and the informer must not count as synced.
    fn note_absence(&mut self, error: &Error) {
        if error.kind() == ApiErrorKind::NotFound
            && self.listed
            && self.config.definition_deleted.swap(false, Ordering::Relaxed)
        {
            tracing::info!("removing all objects because their definition was deleted");
            // After a panic, restore the flag, so that the next 404 tries again.
            let taken_in = self.apply(Event::Relisting).and_then(|()| self.apply(Event::Synced));
            match taken_in {
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
        let asked = error.cause().and_then(retry_after).unwrap_or_default();
        let delay = self.backoff.wait().max(asked);
        let (reason, is_absent) = (failure.message.clone(), failure.kind == ApiErrorKind::NotFound);
        let resource = &self.config.watch;
        let is_news = error.is_reported() && self.config.reporter.record_failure(failure);
        match (is_news, is_absent) {
            (true, true) if !self.config.is_optional => {
                tracing::warn!(%resource, reason, "waiting for the resource to be served");
            }
            (true, false) => tracing::warn!(%resource, reason, "retrying failed watch"),
            _ => tracing::debug!(%resource, reason, ?delay, "backing off"),
        }
        let is_absent = is_absent && asked.is_zero();
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
    /// `suffix` completes the kind of metadata-only objects: `List` for a list, empty for a watch.
    /// A watch that asks for `PartialObjectMetadataList` would fail at its first event.
    async fn send<T: WatchedObject>(&self, query: Query, suffix: &str) -> Result<http::Response<Body>, kube::Error> {
        let mut request = Request::get(query.into_path());
        if T::METADATA_ONLY {
            let accept =
                format!("application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1,application/json");
            request = request.header(header::ACCEPT, accept);
        }
        let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
        let answer = self.client.send(request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(refusal(answer).await)
    }
}

#[cfg(test)]
mod tests;
