//! Converts an error response of any form to a Status.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header, response::Parts};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use kube::core::{Status, response::StatusDetails};
use tower::BoxError;

/// The size limit of an error response's body, in bytes. The apiserver's have a few hundred bytes.
pub(crate) const MAX_ERROR_BODY: usize = 64 << 10;
/// The number of characters to keep of an error response that is not a Status. They appear in logs
/// and error messages.
const MAX_MESSAGE_CHARS: usize = 300;

/// Reads an error response to its end and converts it to an error with its code and `Retry-After`,
/// for [`crate::ApiErrorKind`] and [`crate::retry_after`].
///
/// Use it for responses of `Client::send`. The calls of `Api` return such errors themselves.
pub async fn refusal<B>(response: Response<B>) -> kube::Error
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (parts, body) = response.into_parts();
    match read(&parts, body).await {
        Ok(status) => kube::Error::Api(status.boxed()),
        Err(error) => kube::Error::Service(error),
    }
}

/// Replaces the body of an error response with a Status that has a code and the `Retry-After` of
/// the header, for [`crate::retry_after`].
///
/// The apiserver sends plain text when API Priority and Fairness rejects a request (with a header)
/// and for an unknown path, and a proxy sends any text. kube's client drops the header and the code
/// of such responses and logs their text.
pub(crate) async fn with_status<B>(response: Response<B>) -> Result<Response<Full<Bytes>>, BoxError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let status = read(&parts, body).await?;
    parts.headers.remove(header::CONTENT_LENGTH);
    let json = HeaderValue::from_static("application/json");
    parts.headers.insert(header::CONTENT_TYPE, json);
    let body = serde_json::to_vec(&status)?;
    Ok(Response::from_parts(parts, Full::from(body)))
}

async fn read<B>(parts: &Parts, body: B) -> Result<Status, BoxError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let text = match Limited::new(body, MAX_ERROR_BODY).collect().await {
        Ok(text) => text.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            Bytes::from_static(b"(an error response that is too long to read)")
        }
        Err(error) => return Err(error),
    };
    let mut status = serde_json::from_slice(&text)
        .ok()
        .filter(|status: &Status| status.code != 0 || !status.reason.is_empty())
        .unwrap_or_else(|| Status {
            message: String::from_utf8_lossy(&text)
                .trim()
                .chars()
                .take(MAX_MESSAGE_CHARS)
                .collect(),
            reason: parts.status.canonical_reason().unwrap_or_default().replace(' ', ""),
            ..Status::default()
        });
    if status.code == 0 {
        status.code = parts.status.as_u16();
    }
    if let Some(seconds) = retry_after_header(&parts.headers) {
        let details = status.details.get_or_insert_with(|| StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        details.retry_after_seconds = seconds;
    }
    Ok(status)
}

/// Parses a `Retry-After` in seconds, as the apiserver sends it. Dates are not supported.
fn retry_after_header(headers: &HeaderMap) -> Option<u32> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod corpus;
