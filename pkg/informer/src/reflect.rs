//! The list-and-watch loop: the only async part that an informer has.
//!
//! kube-runtime's `watcher` repeats an HTTP 410 for ever, loses a whole list to one bad object and may start from a stale cache;
//! client-go's reflector is the model for what this loop does instead.

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

/// How often one page is asked for before the list starts over. A continue token that is good for nothing need not be called expired.
const PAGE_ATTEMPTS: u32 = 5;
/// A watch that ended sooner than this and brought nothing is a failure: an apiserver that shuts down ends watches as soon as they open.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// After so many watches in a row that were over before anything could come of them, a list finds out what is true. With the longest waits
/// between them, that is before what is stored is called stale.
const FRUITLESS: u32 = 3;
/// How often the idle limit is doubled, at first, until watches that bring nothing are not believed any more: six minutes by default.
const PATIENCE: u32 = 2;
/// And at most, for what has stayed quiet: twenty-four minutes.
const LONGEST_PATIENCE: u32 = 4;
/// A watch that lasted this long was a good one: the next failure starts to back off from the beginning.
const GOOD_WATCH: Duration = Duration::from_secs(10);

/// Where a loop's events go: a store, or a model of one's own.
pub trait Sink: Send + 'static {
    /// What objects are decoded into.
    type Object: WatchedObject;

    /// Takes one event in. Must not block: the connection waits meanwhile. After a panic everything is listed again.
    fn apply(&mut self, event: Event<Self::Object>);

    /// A list is complete that was begun in this term, and everything in it was taken in. It is consistent, and as of `version`; without
    /// one it is of a resource whose definition was deleted, and with it all objects.
    fn complete(&mut self, _term: u64, _version: Option<&str>) {}
}

/// All that one loop needs.
pub struct ReflectorConfig {
    /// The way to the apiserver.
    pub client: Client,
    /// What is watched.
    pub watch: Watch,
    /// How many objects one page of a list holds.
    pub page_size: u32,
    /// How long the watch may be silent.
    pub idle_timeout: Duration,
    /// Where the loop notes how it fares.
    pub reporter: StatusReporter,
    /// `notify_waiters` on it ends the wait for a resource that is not served.
    pub wake: Arc<Notify>,
    /// Set when the definition of the resource was seen and then deleted: if the resource is not served either, its objects are gone. An
    /// answer of 404 alone does not say so, and keeps them.
    pub definition_deleted: Arc<AtomicBool>,
    /// With each new term everything is listed again: see [`crate::Cache::begin_term`].
    pub terms: watch::Receiver<u64>,
    /// Whoever runs the loop ends it when the resource is no longer served: until then that it is not is nothing to tell of.
    pub is_optional: bool,
}

/// Lists, then watches, and recovers from whatever goes wrong, until it is dropped.
///
/// The first list is consistent (no resourceVersion: a quorum read). A watch that ends resumes after the last version heard; one
/// whose version is no longer kept, be it said as an event or as an HTTP status, lists again. Failures back off with jitter.
pub fn reflect<S: Sink>(config: ReflectorConfig, sink: S) -> impl Future<Output = ()> + Send {
    let mut reflector = Reflector {
        backoff: Backoff::new(),
        whole: false,
        listed: false,
        lists_fail: false,
        lines: 0,
        evidence: Instant::now(),
        known: None,
        patience: PATIENCE,
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
    // An error means that nobody is left to begin one.
    if terms.changed().await.is_err() {
        pending::<()>().await;
    }
}

struct Reflector<S> {
    config: ReflectorConfig,
    sink: S,
    backoff: Backoff,
    /// A list expired between its pages: the next one is asked for without any, once.
    whole: bool,
    /// A list was complete at least once.
    listed: bool,
    /// None has been complete since one failed: that its first pages come is no sign of life.
    lists_fail: bool,
    /// How many lines the last watch has brought.
    lines: usize,
    /// When a line has come last, or a list was complete.
    evidence: Instant,
    /// What the last list has shown, in short, until a line tells of a change.
    known: Option<u64>,
    /// How often the idle limit is doubled until watches that bring nothing are not believed any more.
    patience: u32,
    term: u64,
}

impl<S: Sink> Reflector<S> {
    /// One list, and what follows from it. May be dropped at any point: the next one begins with a list.
    async fn list_and_watch(&mut self) {
        let wake = Arc::clone(&self.config.wake);
        // It hears from here on, so that a wake while the answer is under way is not missed; one during a watch is not kept.
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

    /// Lists everything into the sink and returns the version to watch from.
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

    /// Compares a list with the one before. What has changed without a line was held back by somebody: then nothing is believed for long.
    /// What has not, was quiet, and is believed to be for longer; not every server sends bookmarks of a resource in which nothing happens.
    fn compare(&mut self, content: u64) {
        match self.known.replace(content) {
            Some(before) if before != content => self.patience = 0,
            Some(_) => self.patience = (self.patience + 1).min(LONGEST_PATIENCE),
            None => {}
        }
        self.evidence = Instant::now();
    }

    /// The bytes of one page of a list. One that is not the first is worth a few attempts: the pages before it are kept.
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

    /// Watches from `version` on, across reconnects, until a list is needed.
    async fn follow(&mut self, mut version: String) {
        let since_list = Instant::now();
        // How many watches in a row were answered, and were over before anything could come of them.
        let mut fruitless = 0;
        let mut was_answered = true;
        loop {
            let started = Instant::now();
            let ended = self.watch(&mut version, fruitless == 0 || !was_answered).await;
            let lasted = started.elapsed();
            // Nor is one the sign of an apiserver in trouble that has only been silent for too long.
            let is_good = lasted >= GOOD_WATCH.min(self.config.idle_timeout);
            was_answered = self.lines > 0 || !matches!(ended, Err(Error::Watch(_)));
            fruitless = match ended {
                _ if self.lines > 0 || is_good => 0,
                Ok(()) if lasted >= SHORT_WATCH => 0,
                _ if was_answered => fruitless + 1,
                _ => fruitless,
            };
            let is_mute = self.lines == 0 && was_answered && self.evidence.elapsed() >= self.believed();
            if is_good {
                self.backoff = Backoff::new();
            }
            let error = match ended {
                Ok(()) if self.lines > 0 || lasted >= SHORT_WATCH => {
                    self.backoff = Backoff::new();
                    if is_mute {
                        return;
                    }
                    continue;
                }
                Ok(()) => Error::EndedAtOnce,
                Err(error) => error,
            };
            if error.kind() == ApiErrorKind::Expired {
                tracing::debug!(version, "the version is no longer kept, listing again");
                // A version that expires right after its list would have us list in a circle.
                if since_list.elapsed() < GOOD_WATCH {
                    self.back_off(&error, pending()).await;
                }
                return;
            }
            self.back_off(&error, pending()).await;
            if error.calls_for_list() || is_mute || fruitless >= FRUITLESS {
                return;
            }
        }
    }

    /// For how long it is believed that nothing happens. After that a list finds out whether somebody holds lines back.
    fn believed(&self) -> Duration {
        self.config.idle_timeout * (1 << self.patience)
    }

    /// One watch request: ends well when the apiserver ends it. That it is answered is a sign of life if `is_trusted`; each line is.
    async fn watch(&mut self, version: &mut String, is_trusted: bool) -> Result<(), Error> {
        self.lines = 0;
        let mut query = Query::new(&self.config.watch);
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        query.add("resourceVersion", version);
        query.add("timeoutSeconds", &fastrand::u32(300..600).to_string());
        let answer = self.config.send::<S::Object>(query, "").await.map_err(Error::Watch)?;
        if is_trusted {
            self.config.record_contact();
        }
        let mut body = answer.into_body();
        let idle_timeout = self.config.idle_timeout;
        let mut lines = Lines::default();
        let mut heard = Instant::now();
        loop {
            // Whole lines are signs of life. Bytes that never make one are none.
            let frame = match timeout_at(heard + idle_timeout, body.frame()).await {
                Err(_) => return Err(Error::Silent(idle_timeout)),
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame.map_err(|source| Error::Read(source.into()))?,
            };
            let Ok(data) = frame.into_data() else { continue };
            lines.push(&data);
            while let Some(line) = lines.next() {
                self.config.record_contact();
                heard = Instant::now();
                self.evidence = heard;
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

    /// A panic of the sink ends here: the task goes on and lists again.
    fn apply(&mut self, event: Event<S::Object>) -> Result<(), Error> {
        if let Event::Undecodable { key, error, .. } = &event {
            tracing::warn!(object = %key, error, "skipped an object that cannot be decoded");
        }
        catch_unwind(AssertUnwindSafe(|| self.sink.apply(event))).map_err(|_| {
            tracing::error!("a panic in what takes the objects in, listing everything again");
            Error::Panicked
        })
    }

    /// A resource that is not served, and whose definition was deleted: its objects are gone. Before the first list there is nothing to
    /// take back, and nothing is called complete.
    fn note_absence(&mut self, error: &Error) {
        if error.kind() == ApiErrorKind::NotFound
            && self.listed
            && self.config.definition_deleted.swap(false, Ordering::Relaxed)
        {
            tracing::info!("the definition is deleted, and every object with it");
            // After a panic the flag has to stay: the next 404 tries again.
            let taken_in = self.apply(Event::Relisting).and_then(|()| self.apply(Event::Synced));
            match taken_in {
                Ok(()) => self.sink.complete(self.term, None),
                Err(_) => self.config.definition_deleted.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Notes the failure and waits, at least as long as the apiserver asks. Being woken ends only the wait for a resource that is not
    /// served.
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
                tracing::warn!(%resource, reason, "not served, waiting for its definition");
            }
            (true, false) => tracing::warn!(%resource, reason, "the watch failed, trying again"),
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
    /// The apiserver answered, or sent something.
    fn record_contact(&self) {
        if self.reporter.record_contact(Instant::now()) {
            tracing::info!(resource = %self.watch, "the watch is back");
        }
    }

    /// Sends a GET and turns a refusal into an error. `form` is what the name of the answer's metadata-only kind ends in: `List`, or
    /// nothing for a watch, which with the list's form would end with its first event.
    async fn send<T: WatchedObject>(&self, query: Query, form: &str) -> Result<http::Response<Body>, kube::Error> {
        let mut request = Request::get(query.into_path());
        if T::METADATA_ONLY {
            let accept = format!("application/json;as=PartialObjectMetadata{form};g=meta.k8s.io;v=v1,application/json");
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
