//! Debug pages of a controller.

use std::{fmt, sync::Arc};

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
