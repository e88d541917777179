//! The result of a request: what a webhook responds, or why the request is none.

/// The response to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) body: Vec<u8>,
    pub(crate) decision: Decision,
}

/// What a response decides.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Decision {
    Allowed,
    Patched,
    Denied,
    Converted,
    /// Objects could not be converted.
    Failed,
}

impl Decision {
    /// Returns the value of the label of metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Converted => "converted",
            Self::Failed => "failed",
        }
    }
}

/// A request that is not a review for this webhook.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadRequest {
    /// The body is no review.
    #[error("the body is no {kind}: {source}")]
    Malformed {
        kind: &'static str,
        source: serde_json::Error,
    },
    /// It has another version or kind.
    #[error("expected {expected}, not {actual}")]
    OtherType { expected: String, actual: String },
    /// It has no request.
    #[error("the review has no request")]
    NoRequest,
    /// It has no UID.
    #[error("the request has no uid")]
    NoUid,
    /// It is an `AdmissionReview` for a webhook that converts.
    #[error("this webhook converts objects and reviews none")]
    NoReview,
    /// It is about another resource.
    #[error("this webhook is for {expected}, not for {actual}")]
    OtherResource { expected: String, actual: String },
    /// It is about an operation for which the webhook is not configured.
    #[error("this webhook is for CREATE and UPDATE, not for {0}")]
    OtherOperation(String),
    /// It has no object.
    #[error("the request has no object")]
    NoObject,
    /// The response cannot be encoded.
    #[error("failed to encode the response: {0}")]
    Encode(serde_json::Error),
}
