//! The list-and-watch loop of a shared watch.
//!
//! The loop follows client-go's reflector. kube-runtime's `watcher` retries an HTTP 410 forever and
//! loses a whole list to one bad object.

mod config;
mod conversion;
mod error;
mod pages;
mod stored_version;

use std::{
    future::{Future, pending},
    hash::{DefaultHasher, Hasher},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use portreeve_client::{ApiErrorKind, METADATA, OutageCount, error_chain, refusal, retry_after};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

pub(crate) use self::config::ReflectorConfig;
use self::{
    conversion::Positions,
    error::{Error, MAX_LINE},
    stored_version::{FollowedVersion, Reading, relisting_change},
};
use crate::{
    WatchFailure,
    backoff::{Backoff, with_jitter},
    protocol::{self, Lines, Page, RawEvent, WatchMessage},
    readers::{Participants, Readers},
    reconnects::{RelistReason, RestartReason},
    watch::Query,
    watch_trust::{End, NextRequest, WatchTrust},
};

/// How long the watch continues for the other readers after one has panicked. Then the loop lists
/// again for that one.
const RELIST_AFTER_PANIC: Duration = Duration::from_secs(30);

/// Lists, then watches, and recovers from all failures, until the future is dropped.
///
/// The first list is a quorum read (no resourceVersion). A watch that ends resumes after the last
/// received version; when that version has expired (event or HTTP status), the loop lists again.
/// Failures back off with jitter.
pub(crate) fn reflect(config: ReflectorConfig, readers: Arc<Readers>) -> impl Future<Output = ()> + Send {
    let term = *config.terms.borrow();
    let mut reflector = Reflector {
        backoff: Backoff::new(),
        page_size: config.page_size,
        outages: config.outage.count(),
        unpaged: false,
        has_listed: false,
        is_list_failing: false,
        relist_at: None,
        relist_reason: None,
        listed: None,
        probed: Arc::default(),
        trust: WatchTrust::new(config.idle_timeout, Instant::now()),
        term,
        active: Participants::new(Arc::clone(&readers)),
        readers,
        config,
    };
    let mut terms = reflector.config.terms.clone();
    async move {
        loop {
            let term = *terms.borrow_and_update();
            if std::mem::replace(&mut reflector.term, term) != term {
                reflector.relist_reason = Some(RelistReason::Term);
            }
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

struct Reflector {
    config: ReflectorConfig,
    readers: Arc<Readers>,
    active: Participants,
    backoff: Backoff,
    /// The number of objects in the next page.
    page_size: u32,
    /// The number of outages before the last request.
    outages: OutageCount,
    trust: WatchTrust,
    /// Whether to request the next list without pages, because a list expired between its pages.
    unpaged: bool,
    /// Whether a list has ever completed.
    has_listed: bool,
    /// Whether a list has failed since the last complete list. Then only the last page of a list
    /// counts as contact.
    is_list_failing: bool,
    /// When to list again for readers that panicked, while others go on.
    relist_at: Option<Instant>,
    /// The reason of the next list; `None` for the first.
    relist_reason: Option<RelistReason>,
    /// What the definition said before the last list, for a resource with several versions.
    listed: Option<Reading>,
    /// How far the conversion has been probed.
    probed: Arc<Positions>,
    term: u64,
}

impl Reflector {
    /// Lists once and then watches until the next list is needed. May be dropped at any point,
    /// because the next call begins with a list.
    async fn list_and_watch(&mut self) {
        let wake = Arc::clone(&self.config.crd_signal.wake);
        // Listen before the request, so that a wake during the request is not missed. A wake during
        // a watch is dropped.
        let woken = wake.notified();
        self.follow_definition().await;
        match self.list().await {
            Ok(version) => {
                drop(woken);
                self.is_list_failing = false;
                self.watch_until_list(version).await;
            }
            Err(Error::ListExpired) => self.relist_reason = Some(RelistReason::Expired),
            Err(error) => {
                self.is_list_failing = true;
                self.relist_reason = Some(RelistReason::ListFailed);
                self.remove_with_crd(&error);
                self.back_off(&error, woken).await;
            }
        }
    }

    /// Delivers all objects and returns the version from which to watch.
    async fn list(&mut self) -> Result<String, Error> {
        if let Some(reason) = self.relist_reason.take() {
            self.config.reporter.count_relist(reason);
        }
        let is_paged = !std::mem::take(&mut self.unpaged);
        let was_metadata_only = self.active.is_metadata_only();
        self.active.begin_list();
        if was_metadata_only != self.active.is_metadata_only() {
            self.trust.forget_list();
        }
        self.relist_at = None;
        let mut next: Option<String> = None;
        let mut content = DefaultHasher::new();
        let mut objects = 0;
        loop {
            let bytes = self.page(is_paged, next.as_deref()).await?;
            let page = Page::read(&bytes).map_err(Error::Decode)?;
            if next.is_none() {
                self.active.admit_late_readers();
            }
            for raw in page.items.into_iter().flatten() {
                content.write(raw.get().as_bytes());
                objects += 1;
                self.active.apply(RawEvent::Listed(raw));
            }
            if self.active.all_have_panicked() {
                return Err(Error::Panicked);
            }
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() || !self.is_list_failing {
                self.config.record_contact();
            }
            if next.is_none() {
                let version = page.metadata.resource_version.unwrap_or_default();
                self.active.complete(self.term, &version);
                self.config.reporter.set_objects(objects);
                self.config.record_version(&version);
                self.schedule_relist_after_panic()?;
                self.has_listed = true;
                self.trust.list_completed(content.finish(), Instant::now());
                return Ok(version);
            }
        }
    }

    /// Reads the definition of a resource with several versions, and selects the version to read.
    /// If the apiserver does not send the definition, the version stays.
    async fn follow_definition(&mut self) {
        self.listed = match self.followed_version() {
            Some(followed) => followed.read().await,
            None => None,
        };
        if let Some(version) = self.listed.as_ref().map(|reading| reading.version) {
            self.read_version(version);
        }
    }

    fn followed_version(&self) -> Option<FollowedVersion> {
        let versions = *self.config.versions.get()?;
        Some(FollowedVersion {
            client: self.config.client.clone(),
            resource: self.config.watch.resource.clone(),
            versions,
            listed: self.listed.clone(),
            crd_changed: Arc::clone(&self.config.crd_signal.wake),
            probed: Arc::clone(&self.probed),
            reporter: self.config.reporter.clone(),
        })
    }

    /// Lists and watches in this version from now on.
    fn read_version(&mut self, version: &'static str) {
        let resource = &mut self.config.watch.resource;
        if resource.version == version {
            return;
        }
        tracing::info!(%resource, version, "reading objects in their stored version");
        resource.version = version.into();
    }

    /// Schedules a list for readers that have panicked. Fails if every reader has, so that the loop
    /// backs off and lists.
    fn schedule_relist_after_panic(&mut self) -> Result<(), Error> {
        if self.active.all_have_panicked() {
            return Err(Error::Panicked);
        }
        if self.active.has_panicked_reader() {
            self.relist_at
                .get_or_insert_with(|| Instant::now() + RELIST_AFTER_PANIC);
        }
        Ok(())
    }

    /// Watches from `version`, and reconnects as often as necessary, until a list is needed.
    async fn watch_until_list(&mut self, mut version: String) {
        let readers = Arc::clone(&self.readers);
        let versions = self.followed_version();
        let mut is_resumed = false;
        loop {
            let ended = tokio::select! {
                // In this order, so that no watch is opened in vain.
                biased;
                () = readers.wait_for_unlisted() => {
                    self.relist_reason = Some(RelistReason::Reader);
                    return self.trust.forget_list();
                }
                version = relisting_change(versions.as_ref(), is_resumed) => {
                    self.relist_reason = Some(RelistReason::Version);
                    self.read_version(version);
                    return self.trust.forget_list();
                }
                ended = self.watch(&mut version, is_resumed) => ended,
            };
            self.active.disconnected();
            is_resumed = true;
            let now = Instant::now();
            let end = ended.as_ref().map_or_else(Error::end, |()| End::Closed);
            if self.trust.resets_backoff(end, now) {
                self.backoff = Backoff::new();
            }
            let error = ended.err().unwrap_or(Error::EndedAtOnce);
            let next = self.trust.watch_ended(end, now);
            self.relist_reason = match next {
                NextRequest::List(reason) | NextRequest::ListAfterBackoff(reason) => Some(reason),
                NextRequest::Watch | NextRequest::WatchAfterBackoff => None,
            };
            if matches!(next, NextRequest::WatchAfterBackoff | NextRequest::ListAfterBackoff(_)) {
                self.back_off(&error, pending()).await;
            }
            if self.relist_reason.is_some() {
                return;
            }
            self.config.reporter.count_restart(match next {
                NextRequest::Watch => RestartReason::Closed,
                _ => error.restart_reason(),
            });
        }
    }

    /// Sends one watch request and delivers its changes. Returns `Ok` when the apiserver ends the
    /// watch. Each line counts as contact, and the acceptance usually does.
    async fn watch(&mut self, version: &mut String, is_resumed: bool) -> Result<(), Error> {
        let is_contact = self.trust.watch_started(Instant::now());
        self.active.begin_watch();
        let mut query = Query::new(&self.config.watch);
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        query.add("resourceVersion", version);
        query.add("timeoutSeconds", &fastrand::u32(300..600).to_string());
        let response = self.send(query, METADATA).await.map_err(Error::Watch)?;
        if is_contact {
            self.config.record_contact();
        }
        if is_resumed {
            self.active.resumed();
        }
        let mut body = response.into_body();
        let idle_timeout = self.config.idle_timeout;
        let mut lines = Lines::default();
        let mut last_line = Instant::now();
        loop {
            // Only complete lines count as contact, not bytes that never form a line.
            let idle_at = last_line + idle_timeout;
            let until = self.relist_at.map_or(idle_at, |relist_at| relist_at.min(idle_at));
            let frame = match timeout_at(until, body.frame()).await {
                Err(_) if until < idle_at => return Err(Error::Panicked),
                Err(_) => return Err(Error::Silent(idle_timeout)),
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame.map_err(|source| Error::Read(source.into()))?,
            };
            let Ok(data) = frame.into_data() else { continue };
            lines.push(&data);
            while let Some(line) = lines.next() {
                self.config.record_contact();
                last_line = Instant::now();
                self.handle_line(&line, version)?;
            }
            if lines.unfinished() > MAX_LINE {
                return Err(Error::LineTooLong);
            }
        }
    }

    fn handle_line(&mut self, line: &[u8], version: &mut String) -> Result<(), Error> {
        let message = protocol::read_line(line).map_err(Error::Decode);
        let is_change = matches!(message, Ok(WatchMessage::Event(_)));
        self.trust.line_received(is_change, Instant::now());
        let next = match message? {
            WatchMessage::Event(event) => {
                let began = Instant::now();
                let version = self.active.apply(event);
                self.config.reporter.change_objects(event.count_change());
                self.config.reporter.observe_processing(began.elapsed());
                version
            }
            WatchMessage::Bookmark { version } => version,
            WatchMessage::Failed(status) => return Err(Error::Watch(kube::Error::Api(status))),
        };
        if let Some(next) = next {
            self.config.record_version(&next);
            *version = next;
        }
        self.schedule_relist_after_panic()
    }

    /// Removes all objects if the resource is not served and its CRD was deleted. Before the first
    /// complete list there is nothing to remove, and no reader must count as synced.
    fn remove_with_crd(&mut self, error: &Error) {
        if error.kind() == ApiErrorKind::NotFound
            && self.has_listed
            && self.config.crd_signal.definition_deleted.swap(false, Ordering::Relaxed)
        {
            tracing::info!("removing all objects because their definition was deleted");
            self.active.remove_all(self.term);
            self.config.reporter.set_objects(0);
            // After a panic, restore the flag, so that the next 404 tries again.
            if self.active.has_panicked_reader() {
                self.config.crd_signal.definition_deleted.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Records the failure and waits, at least as long as the apiserver asks. A wake ends the wait
    /// only if the resource is not served, and the end of an outage only if the apiserver was
    /// unavailable.
    async fn back_off(&mut self, error: &Error, woken: impl Future<Output = ()>) {
        let failure = WatchFailure {
            kind: error.kind(),
            message: error_chain(error),
        };
        let requested = error.cause().and_then(retry_after).unwrap_or_default();
        let delay = self.backoff.wait().max(with_jitter(requested));
        let (reason, is_absent) = (failure.message.clone(), failure.kind == ApiErrorKind::NotFound);
        let resource = &self.config.watch;
        let is_new = error.is_reported() && self.config.reporter.record_failure(failure);
        match (is_new, is_absent) {
            (true, true) if !self.readers.required().is_empty() => {
                tracing::warn!(%resource, reason, "waiting for the resource to be served");
            }
            (true, false) => tracing::warn!(%resource, reason, "retrying failed watch"),
            _ => tracing::debug!(%resource, reason, ?delay, "backing off"),
        }
        let is_absent = is_absent && requested.is_zero();
        let is_unavailable = error.is_unavailable() && requested.is_zero();
        let (outage, loops) = (&self.config.outage, Arc::strong_count(&self.config.loops));
        tokio::select! {
            is_over = outage.back_off(delay, self.outages, loops), if is_unavailable => {
                if is_over {
                    self.backoff = Backoff::new();
                }
            }
            () = tokio::time::sleep(delay), if !is_unavailable => {}
            () = woken, if is_absent => self.backoff = Backoff::new(),
        }
    }

    /// Sends a GET request and turns an unsuccessful response into an error. `metadata` is the
    /// `Accept` header if only metadata is wanted.
    async fn send(&mut self, query: Query, metadata: &str) -> Result<http::Response<Body>, kube::Error> {
        let mut request = Request::get(query.into_path());
        if self.active.is_metadata_only() {
            request = request.header(header::ACCEPT, metadata);
        }
        let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
        self.outages = self.config.outage.count();
        let response = self.config.client.send(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response).await)
    }
}

#[cfg(test)]
mod tests;
