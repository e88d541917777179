//! The bearer token of a request.
//!
//! Architecture Invariant: pure.

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// Returns the bearer token of the headers, or `None` if they have none. As in Kubernetes, another
/// scheme is not an error, the case of the scheme does not matter, and only the first header
/// counts. Bytes outside of UTF-8 are replaced, so that the apiserver rejects the token.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Option<String> {
    let header = String::from_utf8_lossy(headers.get(AUTHORIZATION)?.as_bytes());
    let mut parts = header.trim().splitn(3, ' ');
    let (scheme, token) = (parts.next()?, parts.next()?);
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_header_is_read(value: Vec<u8>) {
            let Ok(value) = HeaderValue::from_bytes(&value) else { return Ok(()) };
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.clone());
            if let Some(token) = bearer_token(&headers) {
                prop_assert!(!token.is_empty() && !token.contains(' '));
                prop_assert!(String::from_utf8_lossy(value.as_bytes()).contains(&token));
            }
        }
    }

    fn token(header: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_bytes(header.as_bytes()).unwrap());
        bearer_token(&headers)
    }

    #[test]
    fn only_the_bearer_scheme_has_a_token() {
        let table = [
            ("Bearer abc", Some("abc")),
            ("bearer abc", Some("abc")),
            ("BEARER abc more", Some("abc")),
            ("  Bearer abc  ", Some("abc")),
            ("Bearer  abc", None),
            ("Bearer ", None),
            ("Bearer", None),
            ("Bearer \u{e9}", Some("\u{e9}")),
            ("Token abc", None),
            ("Basic YTpi", None),
            ("abc", None),
            ("", None),
        ];
        for (header, expected) in table {
            assert_eq!(token(header).as_deref(), expected, "{header:?}");
        }
        assert_eq!(bearer_token(&HeaderMap::new()), None);
    }
}
