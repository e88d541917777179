//! A certificate that the caller replaces while the server serves, such as one from a Secret.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

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
    /// Returns an error when they cannot be used at the time `now`. The previous certificate then
    /// remains in use.
    pub fn replace(&self, secret: &str, chain: &[u8], key: &[u8], now: Timestamp) -> Result<Timestamp, PairError> {
        let pair = Pair {
            certificate: FlagFile::of_secret(SECRET, secret, "tls.crt"),
            key: FlagFile::of_secret(SECRET, secret, "tls.key"),
        };
        let certified = pair.parse(chain, key)?;
        let (from, to) = validity(&certified);
        if now < from || to <= now {
            let file = pair.certificate;
            return Err(PairError::NotValid { file, from, to });
        }
        self.0.send_replace(Some(Arc::new(certified)));
        Ok(to)
    }
}

/// Returns when the certificate expires.
pub(crate) fn expires_at(certified: &CertifiedKey) -> Timestamp {
    validity(certified).1
}

/// Returns the begin and the end of the validity of a certificate.
fn validity(certified: &CertifiedKey) -> (Timestamp, Timestamp) {
    let leaf = certified
        .cert
        .first()
        .and_then(|der| X509Certificate::from_der(der).ok());
    let time = |time: ASN1Time| Timestamp::from_second(time.timestamp()).ok();
    // rustls has parsed the certificate before, and jiff ends in the year 9999, as certificates do.
    let validity = leaf.map(|(_, leaf)| {
        let validity = leaf.validity();
        (time(validity.not_before), time(validity.not_after))
    });
    let (from, to) = validity.unwrap_or_default();
    (from.unwrap_or(Timestamp::MIN), to.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn replace(sink: &CertificateSink, chain: &str, key: &str, now: &str) -> Result<Timestamp, String> {
        let replaced = sink.replace("system/serving", chain.as_bytes(), key.as_bytes(), now.parse().unwrap());
        replaced.map_err(|error| error.to_string())
    }

    #[test]
    fn the_error_names_the_key_of_the_secret() {
        let sink = CertificateSink::new();
        let error = replace(&sink, "", "", "2026-01-01T00:00:00Z").unwrap_err();
        expect![
            "tls.crt of --tls-secret=system/serving contains no certificate: it needs a PEM block BEGIN CERTIFICATE"
        ]
        .assert_eq(&error);
        assert!(sink.subscribe().borrow().is_none());
    }

    #[test]
    fn certificates_that_clients_would_reject_are_not_served() {
        let mut params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2029, 1, 1), rcgen::date_time_ymd(2030, 1, 2));
        let key = rcgen::KeyPair::generate().unwrap();
        let (chain, key) = (params.self_signed(&key).unwrap().pem(), key.serialize_pem());
        let sink = CertificateSink::new();
        for now in ["2028-12-31T23:59:59Z", "2030-01-02T00:00:00Z"] {
            let error = replace(&sink, &chain, &key, now).unwrap_err();
            expect!["the certificate in tls.crt of --tls-secret=system/serving is valid from 2029-01-01T00:00:00Z to 2030-01-02T00:00:00Z, not now: issue another one"].assert_eq(&error);
        }
        let error = replace(&sink, &chain.repeat(200), &key, "2029-01-01T00:00:00Z").unwrap_err();
        assert!(error.contains("clients accept 60000"), "{error}");
        assert!(sink.subscribe().borrow().is_none());

        let expiry = replace(&sink, &chain, &key, "2029-01-01T00:00:00Z");
        assert_eq!(expiry, Ok("2030-01-02T00:00:00Z".parse().unwrap()));
        assert!(sink.subscribe().borrow().is_some());
    }
}
