//! Tests error responses of apiservers and proxies, and mutations of them: each becomes a Status
//! with a code and a bounded message.

use std::time::Duration;

use futures::FutureExt;
use http::StatusCode;
use kube::Error;
use portreeve_testing::Corpus;

use super::*;
use crate::{ApiErrorKind, retry_after};

/// The number of mutations.
const MUTATIONS: usize = 5_000;
/// The status codes that are combined with each input.
const CODES: [StatusCode; 4] = [
    StatusCode::NOT_FOUND,
    StatusCode::CONFLICT,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
];

/// Returns a response with this code and body. Its `Retry-After` header is the start of the body,
/// if that is a valid header value.
fn response(code: StatusCode, input: &[u8]) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(input.to_vec()));
    *response.status_mut() = code;
    if let Ok(value) = HeaderValue::from_bytes(&input[..input.len().min(12)]) {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}

fn check(code: StatusCode, input: &[u8]) {
    // The body is complete, so the future is ready at once.
    let error = refusal(response(code, input)).now_or_never().unwrap();
    let Error::Api(status) = &error else {
        panic!("expected a Status, got {error}");
    };
    assert_ne!(status.code, 0);
    assert!(status.message.len() <= MAX_ERROR_BODY);
    assert!(retry_after(&error).is_none_or(|after| after <= Duration::from_mins(5)));
    let classified = ApiErrorKind::of(&error);
    // Calls of `Api` get the same classification.
    let converted = with_status(response(code, input)).now_or_never().unwrap().unwrap();
    assert_eq!(converted.status(), code);
    let body = converted
        .into_body()
        .collect()
        .now_or_never()
        .unwrap()
        .unwrap()
        .to_bytes();
    let again: Status = serde_json::from_slice(&body).unwrap();
    assert_eq!(ApiErrorKind::of_status(&again), classified);
    // An input that is not a Status is classified by the code of the response.
    let is_status = serde_json::from_slice::<Status>(input).is_ok();
    if !is_status {
        assert_eq!(status.code, code.as_u16());
    }
}

#[test]
fn every_error_response_becomes_a_status_with_a_code() -> anyhow::Result<()> {
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/refusal"))?;
    corpus.check(MUTATIONS, |input| {
        for code in CODES {
            check(code, input);
        }
    })
}

#[test]
fn retry_after_is_parsed_only_as_whole_seconds() {
    let table = [
        ("7", Some(7)),
        ("0", Some(0)),
        ("4294967295", Some(4_294_967_295)),
        ("4294967296", None),
        ("99999999999999999999", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("Sun, 22 Nov 2026 01:00:00 GMT", None),
        ("\u{e9}", None),
    ];
    for (text, expected) in table {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_bytes(text.as_bytes()).unwrap();
        headers.insert(header::RETRY_AFTER, value);
        assert_eq!(retry_after_header(&headers), expected, "{text:?}");
    }
}
