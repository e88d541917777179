//! Debug pages and persistent annotations of a controller.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use crate::Target;

/// A page under `/debug/controllers/<controller>/`, for GET. It is rendered on request, on a thread
/// that may compute for seconds. Concurrent requests for the same page are rendered one after
/// another. The handler must only read existing state and must not block.
#[derive(Clone)]
pub struct DebugPage {
    /// The name in the controller's descriptor.
    pub controller: &'static str,
    /// The last segment of the path, such as `graph`.
    pub path: &'static str,
    /// Renders the page.
    pub handler: Arc<dyn Fn(&DebugQuery) -> DebugResponse + Send + Sync>,
}

/// The decoded query string of a request, in its original order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DebugQuery(pub Vec<(String, String)>);

impl DebugQuery {
    /// Returns the first value with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values with this name, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let of_name = self.0.iter().filter(move |(key, _)| key == name);
        of_name.map(|(_, value)| value.as_str())
    }
}

/// The response of a page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DebugResponse {
    /// The HTTP status code.
    pub status: u16,
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// State that survives the process: annotations on the Lease of the controller's group. Standbys
/// can read it too. Deleting the Lease deletes them.
pub trait LeaseAnnotations: Send + Sync {
    /// Returns the Lease as the target of events, or `None` if it does not exist or was not seen
    /// yet.
    fn target(&self) -> Option<Target>;

    /// Returns the last known value of the annotation, from a read, a write or the watch. While a
    /// controller runs, this is never older than the value when this process became the leader.
    fn read(&self, annotation: &str) -> Option<String>;

    /// Waits until any annotation may have changed since the last wait, or since the controller was
    /// built. It may return immediately, and also after one's own [`LeaseAnnotations::write`]. Only
    /// one caller at a time may wait.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// Sets the annotation. The write passes the group's fence. When it completes,
    /// [`LeaseAnnotations::read`] returns the new value. Avoid frequent writes: every replica
    /// receives each one.
    fn write<'a>(&'a self, annotation: &'a str, value: &'a str) -> BoxFuture<'a, Result<(), AnnotateError>>;
}

/// An annotation could not be set. Retrying is safe.
#[derive(Debug, thiserror::Error)]
#[error("failed to annotate Lease {lease}: {reason}")]
pub struct AnnotateError {
    /// The Lease, as `namespace/name`.
    pub lease: String,
    /// The cause.
    pub reason: String,
}

impl DebugResponse {
    /// Returns plain text for people.
    pub fn text(body: impl Into<String>) -> Self {
        Self::of("text/plain; charset=utf-8", body.into())
    }

    /// Returns indented JSON for programs.
    pub fn json(value: &serde_json::Value) -> Self {
        Self::of("application/json", format!("{value:#}\n"))
    }

    /// Returns a 404 with a sentence that says what to do.
    pub fn not_found(sentence: impl fmt::Display) -> Self {
        Self {
            status: 404,
            ..Self::text(format!("{sentence}\n"))
        }
    }

    /// Returns a 400 with a sentence that says what is wrong with the query.
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
