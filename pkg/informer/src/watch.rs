//! The list-and-watch loop: the only async part that an informer has.
//!
//! kube-runtime's `watcher` repeats an HTTP 410 for ever, loses a whole list to one bad object and may start from a stale cache;
//! client-go's reflector is the model for what this loop does instead.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use backon::BackoffBuilder;
use bytes::BytesMut;
use http::{Request, header};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body, core::Status};
use portreeve_api::Resource;
use portreeve_client::{Answer, retry_after};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use crate::{
    Event, Projection, Reporting, Trouble,
    protocol::{self, Heard, Page},
};

/// The longest line of a watch. An object has at most 1.5 MiB in etcd, and conversion may make it longer.
const LONGEST_LINE: usize = 16 << 20;
/// The longest answer that is read as an error.
const LARGEST_ERROR: usize = 64 << 10;
/// A watch that lasted this long was a good one: the next failure starts to back off from the beginning.
const GOOD_WATCH: Duration = Duration::from_secs(10);

/// What is watched. Two equal ones are one watch.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Watch {
    /// The resource.
    pub resource: Resource,
    /// One namespace; `None`: all.
    pub namespace: Option<Arc<str>>,
    /// A label selector; empty: all.
    pub labels: String,
    /// A field selector; empty: all.
    pub fields: String,
}

impl Watch {
    /// All objects of a resource.
    pub fn all(resource: Resource) -> Self {
        Self {
            resource,
            namespace: None,
            labels: String::new(),
            fields: String::new(),
        }
    }
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        for selector in [&self.labels, &self.fields] {
            if !selector.is_empty() {
                write!(f, " where {selector}")?;
            }
        }
        Ok(())
    }
}

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

impl Loop {
    /// Sends a GET and turns a refusal into an error.
    async fn send<T: Projection>(&self, query: Query) -> Result<http::Response<Body>, kube::Error> {
        let mut request = Request::get(query.0);
        if T::METADATA_ONLY {
            let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
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
        let status = serde_json::from_slice(&text).unwrap_or_else(|_| Status {
            code,
            message: String::from_utf8_lossy(&text).trim().to_owned(),
            ..Status::default()
        });
        Err(kube::Error::Api(Box::new(status)))
    }
}

/// A step of the loop that failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to build the request")]
    Build(#[from] http::Error),
    #[error("failed to list")]
    List(#[source] kube::Error),
    #[error("failed to watch")]
    Watch(#[source] kube::Error),
    #[error("failed to read the answer")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("failed to decode the answer")]
    Decode(#[source] serde_json::Error),
    #[error("a line of the watch is longer than {LONGEST_LINE} bytes")]
    Endless,
    #[error("nothing was heard for {0:?}, though a bookmark is due each minute")]
    Silent(Duration),
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

    /// The error and its sources, as one line.
    fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            let next = error.to_string();
            // kube's errors repeat their source in their own text.
            if !text.ends_with(&next) {
                text = format!("{text}: {next}");
            }
            source = error.source();
        }
        text
    }
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
            let mut query = Query::new(&self.watch_loop.watch);
            if let Some(limit) = self.page_size {
                query.add("limit", &limit.to_string());
            }
            if let Some(next) = &next {
                query.add("continue", next);
            }
            let answer = self.watch_loop.send::<S::Object>(query).await.map_err(Error::List);
            let answer = match answer {
                Err(error) if error.answer() == Answer::Expired && next.is_some() => {
                    self.page_size = None;
                    return Err(Error::ListExpired);
                }
                answer => answer?,
            };
            let bytes = answer
                .into_body()
                .collect()
                .await
                .map_err(|source| Error::Read(source.into()))?
                .to_bytes();
            let page: Page<'_> = serde_json::from_slice(&bytes).map_err(Error::Decode)?;
            for raw in page.items.into_iter().flatten() {
                let event = protocol::listed(raw);
                Self::note_bad(&event);
                self.sink.apply(event);
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

    /// Watches from `version` on, across reconnects, until a list is needed.
    async fn follow(&mut self, mut version: String) {
        loop {
            let started = Instant::now();
            let ended = self.watch(&mut version).await;
            if started.elapsed() >= GOOD_WATCH || ended.is_ok() {
                self.backoff = Backoff::new();
            }
            let Err(error) = ended else { continue };
            if error.answer() == Answer::Expired {
                tracing::debug!(version, "the version is no longer kept, listing again");
                return;
            }
            self.back_off(&error).await;
            // Only a broken connection may have lost nothing; after any refusal a list finds out what is true.
            let refused = matches!(error.cause(), Some(kube::Error::Api(_)));
            if refused && error.cause().and_then(retry_after).is_none() {
                return;
            }
        }
    }

    /// One watch request: ends well when the apiserver ends it in its time.
    async fn watch(&mut self, version: &mut String) -> Result<(), Error> {
        let mut query = Query::new(&self.watch_loop.watch);
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        query.add("resourceVersion", version);
        query.add("timeoutSeconds", &fastrand::u32(300..600).to_string());
        let mut body = self
            .watch_loop
            .send::<S::Object>(query)
            .await
            .map_err(Error::Watch)?
            .into_body();
        self.watch_loop.reporting.contact(Instant::now());
        let idle_limit = self.watch_loop.idle_limit;
        let mut buffer = BytesMut::new();
        loop {
            let frame = match timeout(idle_limit, body.frame()).await {
                Err(_) => return Err(Error::Silent(idle_limit)),
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => frame.map_err(|source| Error::Read(source.into()))?,
            };
            self.watch_loop.reporting.contact(Instant::now());
            let Ok(data) = frame.into_data() else { continue };
            buffer.extend_from_slice(&data);
            while let Some(end) = memchr::memchr(b'\n', &buffer) {
                let line = buffer.split_to(end + 1);
                self.hear(&line, version)?;
            }
            if buffer.len() > LONGEST_LINE {
                return Err(Error::Endless);
            }
        }
    }

    fn hear(&mut self, line: &[u8], version: &mut String) -> Result<(), Error> {
        let heard = protocol::heard(line).map_err(Error::Decode)?;
        let next = match heard {
            Heard::Event { event, version } => {
                Self::note_bad(&event);
                self.sink.apply(event);
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

    fn note_bad(event: &Event<S::Object>) {
        if let Event::Undecodable { key, error } = event {
            tracing::warn!(object = %key, error, "skipped an object that cannot be decoded");
        }
    }

    /// Notes the failure and waits, at least as long as the apiserver asks, unless it is woken.
    async fn back_off(&mut self, error: &Error) {
        let trouble = Trouble {
            answer: error.answer(),
            message: error.chain(),
        };
        let asked = error.cause().and_then(retry_after).unwrap_or_default();
        let delay = self.backoff.next().max(asked);
        tracing::debug!(error = trouble.message, ?delay, "backing off");
        self.watch_loop.reporting.trouble(trouble);
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = self.watch_loop.wake.notified() => self.backoff = Backoff::new(),
        }
    }
}

/// 100 ms to 30 s, doubling, with jitter. client-go starts at 800 ms; a control plane that restarts is back sooner than that.
struct Backoff(backon::ExponentialBackoff);

impl Backoff {
    fn new() -> Self {
        let builder = backon::ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(30))
            .with_jitter()
            .without_max_times();
        Self(builder.build())
    }

    fn next(&mut self) -> Duration {
        self.0.next().unwrap_or(Duration::from_secs(30))
    }
}

/// A URL path with its parameters.
struct Query(String);

impl Query {
    fn new(watch: &Watch) -> Self {
        let mut query = Self(watch.resource.collection_path(watch.namespace.as_deref()));
        if !watch.labels.is_empty() {
            query.add("labelSelector", &watch.labels);
        }
        if !watch.fields.is_empty() {
            query.add("fieldSelector", &watch.fields);
        }
        query
    }

    fn add(&mut self, name: &str, value: &str) {
        let separator = if self.0.contains('?') { '&' } else { '?' };
        self.0.push(separator);
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => self.0.push(byte.into()),
                _ => self.0.extend(['%', hex(byte >> 4), hex(byte & 15)]),
            }
        }
    }
}

/// The hexadecimal digit of a number below 16.
fn hex(number: u8) -> char {
    char::from_digit(number.into(), 16).unwrap_or('0').to_ascii_uppercase()
}
