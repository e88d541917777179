//! Reads certificates in PEM.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use x509_parser::{
    pem::Pem,
    prelude::{FromDer, GeneralName, X509Certificate},
};

/// How the common names of CAs begin.
pub(crate) const AUTHORITY_NAME: &str = "portreeve-serving-ca@";

/// How long before its creation a certificate is valid, because clocks differ.
pub(crate) const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// A certificate, and what decisions need of it.
#[derive(Clone)]
pub(crate) struct Certificate {
    /// The certificate as text.
    pub(crate) pem: String,
    der: Vec<u8>,
    pub(crate) common_name: String,
    /// The DNS names.
    pub(crate) names: BTreeSet<String>,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    /// Whether it may sign other certificates.
    is_authority: bool,
    /// The public key, as a `SubjectPublicKeyInfo` in DER.
    pub(crate) public_key: Vec<u8>,
}

impl Certificate {
    /// Reads all certificates of a text. Skips what is no certificate.
    pub(crate) fn read_all(text: &str) -> Vec<Self> {
        let blocks = Pem::iter_from_buffer(text.as_bytes());
        let blocks = blocks
            .map_while(Result::ok)
            .filter(|block| block.label == "CERTIFICATE");
        blocks.filter_map(|block| Self::read(&block.contents)).collect()
    }

    /// Reads a certificate in DER.
    pub(crate) fn read(der: &[u8]) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let common_name = parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned();
        let alternatives = parsed.subject_alternative_name().ok().flatten();
        let alternatives = alternatives.iter().flat_map(|extension| &extension.value.general_names);
        let names = alternatives.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        Some(Self {
            pem: to_pem(der),
            der: der.to_vec(),
            common_name,
            names: names.collect(),
            not_before: time(parsed.validity().not_before)?,
            not_after: time(parsed.validity().not_after)?,
            is_authority: parsed.is_ca(),
            public_key: parsed.public_key().raw.to_vec(),
        })
    }

    /// Returns whether this is a CA that the controller has created. Another CA may have properties
    /// with which clients reject the certificates that it signs.
    pub(crate) fn is_own_authority(&self) -> bool {
        self.is_authority && self.common_name.starts_with(AUTHORITY_NAME) && self.is_signed_by(self)
    }

    /// Returns whether `authority` has signed this certificate.
    pub(crate) fn is_signed_by(&self, authority: &Self) -> bool {
        let (Ok((_, this)), Ok((_, issuer))) = (
            X509Certificate::from_der(&self.der),
            X509Certificate::from_der(&authority.der),
        ) else {
            return false;
        };
        this.issuer() == issuer.subject() && this.verify_signature(Some(issuer.public_key())).is_ok()
    }

    /// Returns whether the certificate is valid at this time.
    pub(crate) fn is_valid(&self, now: Timestamp) -> bool {
        self.not_before <= now && now < self.not_after
    }

    /// Returns when the certificate was created, by the clock of the replica that created it.
    pub(crate) fn created(&self) -> Timestamp {
        self.not_before.saturating_add(BACKDATED).unwrap_or(self.not_after)
    }

    /// Returns when to replace the certificate: after two thirds of its life.
    pub(crate) fn renewal(&self) -> Timestamp {
        self.before_end(3)
    }

    /// Returns when to replace the certificate even if not all clients trust the next one: after
    /// five sixths of its life.
    pub(crate) fn last_renewal(&self) -> Timestamp {
        self.before_end(6)
    }

    /// Returns when one part in `parts` of the certificate's life is left.
    fn before_end(&self, parts: i32) -> Timestamp {
        let left = self.not_after.duration_since(self.created()) / parts;
        self.not_after.checked_sub(left).unwrap_or(self.not_after)
    }
}

/// Returns a certificate in PEM, with 64 characters in a line.
fn to_pem(der: &[u8]) -> String {
    let encoded = data_encoding::BASE64.encode(der);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for start in (0..encoded.len()).step_by(64) {
        text.push_str(&encoded[start..encoded.len().min(start + 64)]);
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}
