//! The CA certificates with which a connection verifies the apiserver, for those who publish them.

use std::{fmt::Write, sync::Arc};

use data_encoding::BASE64;
use kube::Config;
use tokio::sync::watch;

/// The length of a line in PEM (RFC 7468).
const LINE: usize = 64;

/// The CA certificates with which a connection verifies the apiserver. They change with the
/// credentials of the connection. Cheap to clone. The default has none.
#[derive(Clone, Debug, Default)]
pub struct Authorities(Arc<watch::Sender<Option<Arc<str>>>>);

impl Authorities {
    pub(super) fn of(config: &Config) -> Self {
        Self(Arc::new(watch::Sender::new(pem(config))))
    }

    /// Replaces the certificates by these in PEM.
    pub fn replace(&self, pem: Option<Arc<str>>) {
        self.0.send_if_modified(|current| {
            let is_changed = *current != pem;
            *current = pem;
            is_changed
        });
    }

    /// Returns the certificates in PEM; `None` if the configuration names none.
    pub fn pem(&self) -> Option<Arc<str>> {
        self.0.borrow().clone()
    }

    /// Returns a receiver of the certificates.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.0.subscribe()
    }
}

/// Returns the CA certificates of a configuration in PEM.
pub(super) fn pem(config: &Config) -> Option<Arc<str>> {
    let certificates = config
        .root_cert
        .as_ref()
        .filter(|certificates| !certificates.is_empty())?;
    let mut pem = String::new();
    for certificate in certificates {
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = BASE64.encode(certificate);
        for start in (0..encoded.len()).step_by(LINE) {
            let end = encoded.len().min(start + LINE);
            // Writing to a string never fails.
            writeln!(pem, "{}", &encoded[start..end]).ok();
        }
        pem.push_str("-----END CERTIFICATE-----\n");
    }
    Some(pem.into())
}

#[cfg(test)]
mod tests {
    use http::Uri;

    use super::*;

    #[test]
    fn certificates_are_encoded_in_lines_as_openssl_does() {
        let mut config = Config::new(Uri::from_static("https://127.0.0.1"));
        assert_eq!(pem(&config), None);
        config.root_cert = Some(vec![vec![0; 49], vec![255]]);
        let zeros = "A".repeat(64);
        assert_eq!(
            pem(&config).as_deref(),
            Some(&*format!(
                "-----BEGIN CERTIFICATE-----\n{zeros}\nAA==\n-----END CERTIFICATE-----\n\
                 -----BEGIN CERTIFICATE-----\n/w==\n-----END CERTIFICATE-----\n"
            ))
        );
    }

    #[test]
    fn only_other_certificates_are_a_change() {
        let authorities = Authorities::of(&Config::new(Uri::from_static("https://127.0.0.1")));
        let changes = authorities.subscribe();
        authorities.replace(None);
        assert!(!changes.has_changed().unwrap());
        authorities.replace(Some("pem".into()));
        assert!(changes.has_changed().unwrap());
        assert_eq!(authorities.pem().as_deref(), Some("pem"));
    }
}
