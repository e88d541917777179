//! Refusals as apiservers and proxies word them, and as they might be garbled: each becomes a Status with a code, and no more of it is
//! kept than there is room for.

use std::time::Duration;

use futures::FutureExt;
use http::StatusCode;
use kube::Error;
use portreeve_testing::Corpus;

use super::*;
use crate::{ApiErrorKind, retry_after};

/// How many mutations there are.
const MUTATIONS: usize = 5_000;
/// The codes under which each input comes.
const CODES: [StatusCode; 4] = [
    StatusCode::NOT_FOUND,
    StatusCode::CONFLICT,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
];

/// The answer of `code` with that body, and with a header made of its beginning where it can be one.
fn answer(code: StatusCode, input: &[u8]) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(input.to_vec()));
    *answer.status_mut() = code;
    if let Ok(value) = HeaderValue::from_bytes(&input[..input.len().min(12)]) {
        answer.headers_mut().insert(header::RETRY_AFTER, value);
    }
    answer
}

fn check(code: StatusCode, input: &[u8]) {
    // The whole body is there: nothing is waited for.
    let error = refusal(answer(code, input)).now_or_never().unwrap();
    let Error::Api(status) = &error else {
        panic!("no Status: {error}");
    };
    assert_ne!(status.code, 0);
    assert!(status.message.len() <= LARGEST_REFUSAL);
    assert!(retry_after(&error).is_none_or(|after| after <= Duration::from_mins(5)));
    let classified = ApiErrorKind::of(&error);
    // What calls of `Api` get to see of it is the same.
    let seen = with_status(answer(code, input)).now_or_never().unwrap().unwrap();
    assert_eq!(seen.status(), code);
    let body = seen.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
    let again: Status = serde_json::from_slice(&body).unwrap();
    assert_eq!(ApiErrorKind::of_status(&again), classified);
    // What names no reason and no code is judged by the code that it came under.
    let is_status = serde_json::from_slice::<Status>(input).is_ok();
    if !is_status {
        assert_eq!(status.code, code.as_u16());
    }
}

#[test]
fn every_refusal_becomes_a_status_with_a_code() -> anyhow::Result<()> {
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/refusal"))?;
    corpus.check(MUTATIONS, |input| {
        for code in CODES {
            check(code, input);
        }
    })
}

#[test]
fn a_time_to_wait_is_read_in_seconds_or_not_at_all() {
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
