//! A certificate that the caller replaces while the server serves, such as one from a Secret.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::SECRET;
use super::pair::{FlagFile, Pair, PairError};

/// Replaces the certificate of a [`Server`](crate::Server) for new connections. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateSink(watch::Sender<Option<Arc<CertifiedKey>>>);

impl CertificateSink {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// Returns the receiver of the certificates.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<CertifiedKey>>> {
        self.0.subscribe()
    }

    /// Replaces the certificate by this chain and key in PEM. `secret` is where they come from, as
    /// `namespace/name`. Returns when the certificate expires.
    ///
    /// # Errors
    ///
    /// Returns an error when they cannot be used. The previous certificate then remains in use.
    pub fn replace(&self, secret: &str, chain: &[u8], key: &[u8]) -> Result<Timestamp, PairError> {
        let pair = Pair {
            certificate: FlagFile::of_secret(SECRET, secret, "tls.crt"),
            key: FlagFile::of_secret(SECRET, secret, "tls.key"),
        };
        let certified = pair.parse(chain, key)?;
        let expiry = expires_at(&certified);
        self.0.send_replace(Some(Arc::new(certified)));
        Ok(expiry)
    }
}

/// Returns when the certificate expires.
pub(crate) fn expires_at(certified: &CertifiedKey) -> Timestamp {
    let leaf = certified
        .cert
        .first()
        .and_then(|der| X509Certificate::from_der(der).ok());
    let seconds = leaf.map(|(_, leaf)| leaf.validity().not_after.timestamp());
    // rustls has parsed the certificate before, and jiff ends in the year 9999, as certificates do.
    seconds
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn an_error_names_the_key_of_the_secret() {
        let sink = CertificateSink::new();
        let error = sink.replace("system/serving", b"", b"").unwrap_err();
        expect![
            "tls.crt of --tls-secret=system/serving contains no certificate: it needs a PEM block BEGIN CERTIFICATE"
        ]
        .assert_eq(&error.to_string());
        assert!(sink.subscribe().borrow().is_none());
    }

    #[test]
    fn the_expiry_is_that_of_the_leaf() {
        let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2030, 1, 2);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let sink = CertificateSink::new();
        let expiry = sink.replace(
            "system/serving",
            certificate.pem().as_bytes(),
            key.serialize_pem().as_bytes(),
        );
        assert_eq!(expiry.unwrap(), "2030-01-02T00:00:00Z".parse().unwrap());
        assert!(sink.subscribe().borrow().is_some());
    }
}
