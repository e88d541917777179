//! Verifies client certificates and reads who they name.
//!
//! Architecture Invariant: pure. Time is an argument.

use std::sync::Arc;

use portreeve_serving::User;
use ring::digest::{SHA256, digest};
use rustls::RootCertStore;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

/// The key of the extra field that identifies a certificate, as in Kubernetes.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The maximum number of certificates that a client may present: its own and some intermediates.
const LONGEST_CHAIN: usize = 5;

/// CA certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BundleError {
    /// The text is not PEM. The error leaves the text out, which may contain a key.
    #[error("it is not valid PEM")]
    Pem,
    /// The text contains no certificate.
    #[error("it contains no certificate: it needs a PEM block BEGIN CERTIFICATE")]
    Empty,
    /// A certificate cannot be used as a CA.
    #[error("one of its certificates cannot be used")]
    Unusable(#[source] rustls::Error),
    /// No verifier can be built from the certificates.
    #[error("its certificates cannot be used together")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// A certificate that does not authenticate a client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    /// No CA of the bundle has issued it, it has expired, or it is not for clients.
    #[error("failed to verify the client certificate")]
    Verify(#[source] rustls::Error),
    /// The subject cannot be parsed.
    #[error("failed to parse the client certificate")]
    Parse,
    /// The chain is longer than any that a CA issues. Looking for a path through many certificates
    /// would take long.
    #[error("the client presents {count} certificates, more than {LONGEST_CHAIN}")]
    TooLong {
        /// The number of certificates.
        count: usize,
    },
}

/// The CAs whose client certificates are accepted.
#[derive(Clone, Debug)]
pub(crate) struct CaBundle(Arc<dyn ClientCertVerifier>);

impl CaBundle {
    /// Parses the PEM blocks of CA certificates.
    pub(crate) fn parse(pem: &str) -> Result<Self, BundleError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|_| BundleError::Pem)?;
            roots.add(certificate).map_err(BundleError::Unusable)?;
        }
        if roots.is_empty() {
            return Err(BundleError::Empty);
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(default_provider()));
        verifier.build().map(Self).map_err(BundleError::Verifier)
    }

    /// Verifies the chain of a client, whose first certificate is its own.
    pub(crate) fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<Subject, CertificateError> {
        if chain.len() > LONGEST_CHAIN {
            return Err(CertificateError::TooLong { count: chain.len() });
        }
        let (own, intermediates) = chain.split_first().ok_or(CertificateError::Parse)?;
        self.0
            .verify_client_cert(own, intermediates, now)
            .map_err(CertificateError::Verify)?;
        Subject::parse(own)
    }
}

/// The subject of a verified certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) common_name: String,
    organizations: Vec<String>,
    fingerprint: String,
}

impl Subject {
    fn parse(certificate: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::Parse)?;
        let text = |value: &AttributeTypeAndValue<'_>| {
            let text = value.as_str().map(str::to_owned);
            text.map_err(|_| CertificateError::Parse)
        };
        // As in Go, the last common name counts.
        let common_name = parsed.subject().iter_common_name().last().map(text).transpose()?;
        let organizations = parsed.subject().iter_organization().map(text);
        let fingerprint = digest(&SHA256, certificate);
        Ok(Self {
            common_name: common_name.unwrap_or_default(),
            organizations: organizations.collect::<Result<_, _>>()?,
            fingerprint: data_encoding::HEXLOWER.encode(fingerprint.as_ref()),
        })
    }

    /// Returns the user that the certificate names: the common name, with the organizations as
    /// groups. A certificate without a common name belongs to nobody.
    pub(crate) fn into_user(self) -> Option<User> {
        (!self.common_name.is_empty()).then(|| User {
            name: self.common_name,
            uid: String::new(),
            groups: self.organizations,
            extra: [(
                CREDENTIAL_ID.to_owned(),
                vec![format!("X509SHA256={}", self.fingerprint)],
            )]
            .into(),
        })
    }
}

#[cfg(test)]
mod tests;
