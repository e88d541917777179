//! The list-and-watch loop: the only async part that an informer has.
//!
//! kube-runtime's `watcher` repeats an HTTP 410 for ever, loses a whole list to one bad object and may start from a stale cache;
//! client-go's reflector is the model for what this loop does instead.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body, core::Status};
use portreeve_client::{Answer, chain, retry_after};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::{
    Event, Projection, Reporting, Trouble, Watch,
    backoff::Backoff,
    protocol::{self, BadJson, Heard, Lines, Page},
    watch::Query,
};

/// The longest line of a watch. An object has at most 1.5 MiB in etcd, and conversion may make it longer.
const LONGEST_LINE: usize = 16 << 20;
/// The longest answer that is read as an error.
const LARGEST_ERROR: usize = 64 << 10;
/// A watch that ended sooner than this and brought nothing is a failure: an apiserver that shuts down ends watches as soon as they open.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that lasted this long was a good one: the next failure starts to back off from the beginning.
const GOOD_WATCH: Duration = Duration::from_secs(10);

/// Where a loop's events go: a store, or a model of one's own.
pub trait Sink: Send + 'static {
    /// What objects are decoded into.
    type Object: Projection;

    /// Takes one event in. Must not block: the connection waits meanwhile.
    fn apply(&mut self, event: Event<Self::Object>);
}

/// All that one loop needs.
pub struct Loop {
    /// The way to the apiserver.
    pub client: Client,
    /// What is watched.
    pub watch: Watch,
    /// How many objects one page of a list holds.
    pub page_size: u32,
    /// How long the watch may be silent.
    pub idle_limit: Duration,
    /// Where the loop notes how it fares.
    pub reporting: Reporting,
    /// Ends a back-off early.
    pub wake: Arc<Notify>,
}

/// A step of the loop that failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to list")]
    List(#[source] kube::Error),
    #[error("failed to watch")]
    Watch(#[source] kube::Error),
    #[error("failed to read the answer")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to decode the answer")]
    Decode(#[source] BadJson),
    #[error("a line of the watch is longer than {LONGEST_LINE} bytes")]
    Endless,
    #[error("nothing was heard for {0:?}, though a bookmark is due each minute")]
    Silent(Duration),
    #[error("the watch ended as soon as it had begun")]
    EndedAtOnce,
    #[error("the list is no longer kept and has to be started over")]
    ListExpired,
}

impl Error {
    fn cause(&self) -> Option<&kube::Error> {
        match self {
            Self::List(source) | Self::Watch(source) => Some(source),
            _ => None,
        }
    }

    fn answer(&self) -> Answer {
        self.cause().map_or(Answer::Transient, Answer::of)
    }

    /// Whether to list before watching again. A broken connection has lost nothing: the watch resumes where it was. After a refusal a
    /// list finds out what is true, unless all that was said is "later"; and a line that could not be read would only come again.
    fn calls_for_list(&self) -> bool {
        match self {
            Self::Decode(_) | Self::Endless => true,
            Self::Watch(error @ kube::Error::Api(status)) => retry_after(error).is_none() || is_from_the_future(status),
            _ => false,
        }
    }
}

/// The version asked for is newer than all that the apiserver knows: etcd was restored from a backup. It says "later", which would never
/// come.
fn is_from_the_future(status: &Status) -> bool {
    let details = status.details.iter();
    details
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// Lists, then watches, and recovers from whatever goes wrong, until it is dropped.
///
/// The first list is consistent (no resourceVersion: a quorum read). A watch that ends resumes after the last version heard; one
/// whose version is no longer kept, be it said as an event or as an HTTP status, lists again. Failures back off with jitter.
pub fn reflect<S: Sink>(watch_loop: Loop, sink: S) -> impl Future<Output = ()> + Send {
    let mut run = Run {
        backoff: Backoff::new(),
        page_size: Some(watch_loop.page_size),
        watch_loop,
        sink,
    };
    async move {
        loop {
            match run.list().await {
                Ok(version) => run.follow(version).await,
                Err(Error::ListExpired) => {}
                Err(error) => run.back_off(&error).await,
            }
        }
    }
}

struct Run<S> {
    watch_loop: Loop,
    sink: S,
    backoff: Backoff,
    /// `None` after a list expired between its pages: the next one is asked for whole.
    page_size: Option<u32>,
}

impl<S: Sink> Run<S> {
    /// Lists everything into the sink and returns the version to watch from.
    async fn list(&mut self) -> Result<String, Error> {
        self.sink.apply(Event::Relisting);
        let mut next: Option<String> = None;
        loop {
            let bytes = self.page(next.as_deref()).await?;
            let page = Page::read(&bytes).map_err(Error::Decode)?;
            for raw in page.items.into_iter().flatten() {
                self.apply(protocol::listed(raw));
            }
            self.watch_loop.reporting.contact(Instant::now());
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() {
                self.sink.apply(Event::Synced);
                self.page_size = Some(self.watch_loop.page_size);
                return Ok(page.metadata.resource_version.unwrap_or_default());
            }
        }
    }

    /// The bytes of one page of a list.
    async fn page(&mut self, next: Option<&str>) -> Result<Bytes, Error> {
        let mut query = Query::new(&self.watch_loop.watch);
        if let Some(limit) = self.page_size {
            query.add("limit", &limit.to_string());
        }
        if let Some(next) = next {
            query.add("continue", next);
        }
        let answer = self.watch_loop.send::<S::Object>(query).await.map_err(Error::List);
        let answer = match answer {
            Err(error) if error.answer() == Answer::Expired && next.is_some() && self.page_size.is_some() => {
                self.page_size = None;
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
        loop {
            let started = Instant::now();
            let ended = self.watch(&mut version).await;
            let lasted = started.elapsed();
            if lasted >= GOOD_WATCH {
                self.backoff = Backoff::new();
            }
            let error = match ended {
                Ok(lines) if lines > 0 || lasted >= SHORT_WATCH => {
                    self.backoff = Backoff::new();
                    continue;
                }
                Ok(_) => Error::EndedAtOnce,
                Err(error) => error,
            };
            if error.answer() == Answer::Expired {
                tracing::debug!(version, "the version is no longer kept, listing again");
                // A version that expires right after its list would have us list in a circle.
                if since_list.elapsed() < GOOD_WATCH {
                    self.back_off(&error).await;
                }
                return;
            }
            self.back_off(&error).await;
            if error.calls_for_list() {
                return;
            }
        }
    }

    /// One watch request: ends well, with the number of lines that it brought, when the apiserver ends it.
    async fn watch(&mut self, version: &mut String) -> Result<usize, Error> {
        let mut query = Query::new(&self.watch_loop.watch);
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        query.add("resourceVersion", version);
        query.add("timeoutSeconds", &fastrand::u32(300..600).to_string());
        let answer = self.watch_loop.send::<S::Object>(query).await.map_err(Error::Watch)?;
        self.watch_loop.reporting.contact(Instant::now());
        let mut body = answer.into_body();
        let idle_limit = self.watch_loop.idle_limit;
        let mut lines = Lines::default();
        let mut count = 0;
        loop {
            let frame = match timeout(idle_limit, body.frame()).await {
                Err(_) => return Err(Error::Silent(idle_limit)),
                Ok(None) => return Ok(count),
                Ok(Some(frame)) => frame.map_err(|source| Error::Read(source.into()))?,
            };
            self.watch_loop.reporting.contact(Instant::now());
            let Ok(data) = frame.into_data() else { continue };
            lines.push(&data);
            while let Some(line) = lines.next() {
                self.hear(&line, version)?;
                count += 1;
            }
            if lines.unfinished() > LONGEST_LINE {
                return Err(Error::Endless);
            }
        }
    }

    fn hear(&mut self, line: &[u8], version: &mut String) -> Result<(), Error> {
        let next = match protocol::heard(line).map_err(Error::Decode)? {
            Heard::Event { event, version } => {
                self.apply(event);
                version
            }
            Heard::Bookmark { version } => version,
            Heard::Failed(status) => return Err(Error::Watch(kube::Error::Api(status))),
        };
        if let Some(next) = next {
            *version = next;
        }
        Ok(())
    }

    fn apply(&mut self, event: Event<S::Object>) {
        if let Event::Undecodable { key, error } = &event {
            tracing::warn!(object = %key, error, "skipped an object that cannot be decoded");
        }
        self.sink.apply(event);
    }

    /// Notes the failure and waits, at least as long as the apiserver asks, unless it is woken.
    async fn back_off(&mut self, error: &Error) {
        let trouble = Trouble {
            answer: error.answer(),
            message: chain(error),
        };
        let asked = error.cause().and_then(retry_after).unwrap_or_default();
        let delay = self.backoff.wait().max(asked);
        tracing::debug!(error = trouble.message, ?delay, "backing off");
        self.watch_loop.reporting.trouble(trouble);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = self.watch_loop.wake.notified() => self.backoff = Backoff::new(),
        }
    }
}

impl Loop {
    /// Sends a GET and turns a refusal into an error.
    async fn send<T: Projection>(&self, query: Query) -> Result<http::Response<Body>, kube::Error> {
        let path = query.into_path();
        // A watch that asks for the list's form too gets it, and ends with its first event.
        let form = if path.contains("watch=true") { "" } else { "List" };
        let mut request = Request::get(path);
        if T::METADATA_ONLY {
            let accept = format!("application/json;as=PartialObjectMetadata{form};g=meta.k8s.io;v=v1,application/json");
            request = request.header(header::ACCEPT, accept);
        }
        let request = request.body(Body::empty()).map_err(kube::Error::HttpError)?;
        let answer = self.client.send(request).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status().as_u16();
        let text = Limited::new(answer.into_body(), LARGEST_ERROR).collect().await;
        let text = text.map_err(kube::Error::Service)?.to_bytes();
        let mut status = serde_json::from_slice(&text).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&text).trim().to_owned(),
            ..Status::default()
        });
        // Not every refusal is a Status, and JSON of any other kind reads as an empty one.
        if status.code == 0 {
            status.code = code;
        }
        Err(kube::Error::Api(Box::new(status)))
    }
}

#[cfg(test)]
mod tests;
