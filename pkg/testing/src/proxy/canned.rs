//! Responses that the proxy sends itself, in the form of the apiserver's.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

/// A failure in the form of a Kubernetes Status, or a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannedResponse {
    code: StatusCode,
    body: Value,
    retry_after: Option<u32>,
}

impl CannedResponse {
    /// Returns a failure with the given code, reason and message, such as
    /// `CannedResponse::status(StatusCode::GONE, "Expired", "…")`.
    pub fn status(code: StatusCode, reason: impl Into<String>, message: impl Into<String>) -> Self {
        let body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message.into(),
            "reason": reason.into(),
            "code": code.as_u16(),
        });
        Self {
            code,
            body,
            retry_after: None,
        }
    }

    /// Returns a 200 with this document.
    pub fn document(body: Value) -> Self {
        Self {
            code: StatusCode::OK,
            body,
            retry_after: None,
        }
    }

    /// Returns a 409: another client changed the object.
    pub fn conflict() -> Self {
        Self::status(
            StatusCode::CONFLICT,
            "Conflict",
            "the object has been modified (fault proxy)",
        )
    }

    /// Returns a 429 that asks the client to wait for `retry_after` seconds.
    pub fn too_many_requests(retry_after: u32) -> Self {
        Self::status(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            "too many requests (fault proxy)",
        )
        .retry_after(retry_after)
    }

    /// Returns a 503 without a `Retry-After`.
    pub fn unavailable() -> Self {
        Self::status(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "the server is unable to handle the request (fault proxy)",
        )
    }

    /// Returns a 410: the version of a watch or the continue token of a list has expired.
    pub fn expired() -> Self {
        Self::status(StatusCode::GONE, "Expired", "too old resource version (fault proxy)")
    }

    /// Returns a 500, as from an apiserver whose etcd fails.
    pub fn internal_error() -> Self {
        Self::status(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            "etcdserver: request timed out (fault proxy)",
        )
    }

    /// Returns a 504, as from an apiserver that exceeds its own time limit.
    pub fn timeout() -> Self {
        Self::status(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            "request did not complete within the allotted timeout (fault proxy)",
        )
    }

    /// Adds a request to wait for `seconds`, in the header and in the Status.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self.body["details"] = json!({"retryAfterSeconds": seconds});
        self
    }

    pub(crate) fn response(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::from(self.body.to_string()));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}
