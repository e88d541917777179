//! Answers of the proxy's own, as the apiserver would word them.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

/// A failure in the form of a Kubernetes Status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CannedResponse {
    code: StatusCode,
    reason: String,
    message: String,
    retry_after: Option<u32>,
}

impl CannedResponse {
    /// A failure of the caller's choice: `CannedResponse::status(StatusCode::GONE, "Expired", "…")`.
    pub fn status(code: StatusCode, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.into(),
            message: message.into(),
            retry_after: None,
        }
    }

    /// 409: somebody else changed the object.
    pub fn conflict() -> Self {
        Self::status(
            StatusCode::CONFLICT,
            "Conflict",
            "the object has been modified (fault proxy)",
        )
    }

    /// 429, with the seconds that the client is asked to wait.
    pub fn too_many_requests(retry_after: u32) -> Self {
        Self::status(
            StatusCode::TOO_MANY_REQUESTS,
            "TooManyRequests",
            "too many requests (fault proxy)",
        )
        .retry_after(retry_after)
    }

    /// 503, without a word on when it will be better.
    pub fn unavailable() -> Self {
        Self::status(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "the server is unable to handle the request (fault proxy)",
        )
    }

    /// 410: what a watch or a list wanted to go on with is not there any more.
    pub fn expired() -> Self {
        Self::status(StatusCode::GONE, "Expired", "too old resource version (fault proxy)")
    }

    /// 500, as of an apiserver whose etcd fails it.
    pub fn internal_error() -> Self {
        Self::status(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            "etcdserver: request timed out (fault proxy)",
        )
    }

    /// 504, as of an apiserver that was too slow for itself.
    pub fn timeout() -> Self {
        Self::status(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            "request did not complete within the allotted timeout (fault proxy)",
        )
    }

    /// Asks the client to wait for so many seconds, in the header and in the Status.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn response(&self) -> Response<Full<Bytes>> {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code.as_u16(),
        });
        if let Some(seconds) = self.retry_after {
            status["details"] = json!({"retryAfterSeconds": seconds});
        }
        let mut response = Response::new(Full::from(status.to_string()));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}
