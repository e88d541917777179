//! What a controller shows of itself besides metrics, and what it remembers beyond its process.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use crate::Target;

/// A page under `/debug/controllers/<controller>/`, for GET. It is made on request, on a thread that may compute for seconds, and for one at
/// a time: read what is known, and wait for nothing.
#[derive(Clone)]
pub struct DebugPage {
    /// Whose it is: the descriptor's name.
    pub controller: &'static str,
    /// The last part of its path, such as `graph`.
    pub path: &'static str,
    /// Makes it.
    pub handler: Arc<dyn Fn(&DebugQuery) -> DebugResponse + Send + Sync>,
}

/// What a page was asked for: the decoded query string, in its order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DebugQuery(pub Vec<(String, String)>);

impl DebugQuery {
    /// The first value of that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every value of that name, in their order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let of_name = self.0.iter().filter(move |(key, _)| key == name);
        of_name.map(|(_, value)| value.as_str())
    }
}

/// The answer of a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DebugResponse {
    /// The HTTP status code.
    pub status: u16,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// One line that a controller adds to `/readyz`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReadinessCheck {
    /// What was looked at: letters, digits, `-`, `.`, `_` and `/`.
    pub name: String,
    /// What was found.
    pub state: ReadinessStatus,
}

/// How a finding counts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadinessStatus {
    /// Nothing to tell.
    Ok,
    /// Passes, but whoever reads the list should know this.
    Note(String),
    /// Fails readiness.
    Failed(String),
}

/// Looks once at what readiness should tell of a controller. It is called for each request, on the runtime's own threads: read what is
/// known, never wait or compute long.
pub type ReadinessChecker = Arc<dyn Fn() -> Vec<ReadinessCheck> + Send + Sync>;

/// What survives the process and its successors: annotations of the Lease that the controller's group is elected by. Standbys read it too.
/// Whoever deletes the Lease deletes them.
pub trait LeaseAnnotations: Send + Sync {
    /// The Lease, for events about what is noted; `None` while there is none, or none was seen yet.
    fn target(&self) -> Option<Target>;

    /// What the annotation says, as far as it is known: as the Lease was last read, written or watched. When a controller is run, that is
    /// what it said when this process came to lead, or later.
    fn read(&self, annotation: &str) -> Option<String>;

    /// Waits until any annotation may have changed since this was last waited for, or else since the controller was built: so it may come
    /// back at once, and for one's own [`LeaseAnnotations::write`]. For one caller at a time.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// Sets the annotation. Passes the group's fence, and is known to [`LeaseAnnotations::read`] once it is done. Not for what changes often: each
    /// write is heard by every replica.
    fn write<'a>(&'a self, annotation: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), AnnotateError>>;
}

/// An annotation could not be set. Trying again is safe.
#[derive(Debug, thiserror::Error)]
#[error("failed to annotate Lease {lease}: {reason}")]
pub struct AnnotateError {
    /// `namespace/name` of the Lease.
    pub lease: String,
    /// What went wrong.
    pub reason: String,
}

impl DebugResponse {
    /// Text for people.
    pub fn text(body: impl Into<String>) -> Self {
        Self::of("text/plain; charset=utf-8", body.into())
    }

    /// JSON for programs, indented.
    pub fn json(value: &serde_json::Value) -> Self {
        Self::of("application/json", format!("{value:#}\n"))
    }

    /// There is no such thing, and this is what to do about it.
    pub fn not_found(sentence: impl fmt::Display) -> Self {
        Self {
            status: 404,
            ..Self::text(format!("{sentence}\n"))
        }
    }

    /// The query makes no sense, and this is why.
    pub fn bad_request(sentence: impl fmt::Display) -> Self {
        Self {
            status: 400,
            ..Self::text(format!("{sentence}\n"))
        }
    }

    fn of(content_type: &'static str, body: String) -> Self {
        Self {
            status: 200,
            content_type,
            body,
        }
    }
}
