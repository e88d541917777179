//! Which client certificates and front proxies are trusted.
//!
//! The apiserver publishes its own configuration in the ConfigMap
//! `kube-system/extension-apiserver-authentication`; flags take precedence over it.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use crate::{
    client_certificate::{BundleError, CaBundle},
    request_header::HeaderNames,
};

/// The trusted issuers of client certificates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    /// The CAs of users.
    pub(crate) users: Option<CaBundle>,
    /// The front proxies that may name users in headers.
    pub(crate) proxies: Option<TrustedProxies>,
}

/// The front proxies that may name users in headers.
#[derive(Clone, Debug)]
pub(crate) struct TrustedProxies {
    /// The CAs of the proxies.
    pub(crate) ca: CaBundle,
    /// The common names of the proxies. Empty: every certificate of the CAs is a proxy's.
    pub(crate) allowed_names: Vec<String>,
    pub(crate) headers: HeaderNames,
}

/// A ConfigMap that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    /// CA certificates cannot be used.
    #[error("failed to use {key}")]
    Bundle {
        key: &'static str,
        #[source]
        source: BundleError,
    },
    /// The name of a header is empty, which would match every header.
    #[error("failed to use {key}: it contains an empty name")]
    EmptyHeader { key: &'static str },
    /// A list is not a list.
    #[error("failed to parse {key}: expected a JSON list of strings")]
    List {
        key: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

/// Parses CA certificates. `key` names them in an error.
fn bundle(key: &'static str, pem: &str) -> Result<CaBundle, TrustError> {
    CaBundle::parse(pem).map_err(|source| TrustError::Bundle { key, source })
}

impl Trust {
    /// Reads the data of the ConfigMap. Missing keys trust nobody.
    pub(crate) fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, TrustError> {
        let text = |key: &str| data.get(key).map(String::as_str).filter(|text| !text.trim().is_empty());
        let list = |key: &'static str| match text(key) {
            Some(json) => serde_json::from_str(json).map_err(|source| TrustError::List { key, source }),
            None => Ok(Vec::new()),
        };
        let headers = |key: &'static str| {
            let names: Vec<String> = list(key)?;
            let names: Vec<_> = names.iter().map(|name| name.trim().to_owned()).collect();
            if names.contains(&String::new()) {
                return Err(TrustError::EmptyHeader { key });
            }
            Ok(names)
        };
        let read = |key| text(key).map(|pem| bundle(key, pem)).transpose();
        let proxies = match read("requestheader-client-ca-file")? {
            Some(ca) => Some(TrustedProxies {
                ca,
                allowed_names: list("requestheader-allowed-names")?,
                headers: HeaderNames {
                    username: headers("requestheader-username-headers")?,
                    uid: headers("requestheader-uid-headers")?,
                    group: headers("requestheader-group-headers")?,
                    extra_prefix: headers("requestheader-extra-headers-prefix")?,
                },
            }),
            None => None,
        };
        Ok(Self {
            users: read("client-ca-file")?,
            proxies,
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use portreeve_client::error_chain;

    use super::*;

    fn ca() -> String {
        let certified = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
        certified.cert.pem()
    }

    fn parse(data: &[(&str, &str)]) -> Result<Trust, TrustError> {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Trust::from_config_map(&data.collect())
    }

    fn check_error(data: &[(&str, &str)], expected: &Expect) {
        expected.assert_eq(&error_chain(&parse(data).unwrap_err()));
    }

    #[test]
    fn the_config_map_of_an_apiserver_is_read() {
        let ca = ca();
        let trust = parse(&[
            ("client-ca-file", &ca),
            ("requestheader-client-ca-file", &ca),
            ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
        ]);
        let Trust { users, proxies } = trust.unwrap();
        let proxies = proxies.unwrap();
        assert!(users.is_some());
        assert_eq!(proxies.allowed_names, ["front-proxy-client"]);
        assert_eq!(proxies.headers.username, ["X-Remote-User"]);
        assert_eq!(proxies.headers.uid, Vec::<String>::new());
        assert_eq!(proxies.headers.group, ["X-Remote-Group"]);
        assert_eq!(proxies.headers.extra_prefix, ["X-Remote-Extra-"]);
    }

    #[test]
    fn missing_keys_trust_nobody() {
        for data in [
            &[][..],
            &[("client-ca-file", " \n")],
            &[("requestheader-allowed-names", "[]")],
        ] {
            let trust = parse(data).unwrap();
            assert!(trust.users.is_none() && trust.proxies.is_none(), "{data:?}");
        }
    }

    #[test]
    fn an_error_names_the_key_and_shows_no_value() {
        check_error(
            &[("client-ca-file", "-----BEGIN CERTIFICATE-----\nsecret")],
            &expect!["failed to use client-ca-file: it is not valid PEM"],
        );
        check_error(
            &[("requestheader-client-ca-file", "secret")],
            &expect![
                "failed to use requestheader-client-ca-file: it contains no certificate: it needs a PEM block BEGIN CERTIFICATE"
            ],
        );
        check_error(
            &[
                ("requestheader-client-ca-file", &ca()),
                ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-", " "]"#),
            ],
            &expect!["failed to use requestheader-extra-headers-prefix: it contains an empty name"],
        );
        check_error(
            &[
                ("requestheader-client-ca-file", &ca()),
                ("requestheader-allowed-names", "front-proxy"),
            ],
            &expect![
                "failed to parse requestheader-allowed-names: expected a JSON list of strings: expected ident at line 1 column 2"
            ],
        );
    }
}
