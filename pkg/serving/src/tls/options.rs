//! `--tls-min-version` and `--tls-cipher-suites`, with the names of Go.
//!
//! Architecture Invariant: values only.

use std::str::FromStr;

use rustls::crypto::{CryptoProvider, ring};
use rustls::version::TLS13;
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion};

static TLS13_ONLY: [&SupportedProtocolVersion; 1] = [&TLS13];

/// The lowest TLS version to serve. rustls has none below 1.2, so lower ones mean 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TlsVersion {
    /// TLS 1.0.
    #[value(name = "VersionTLS10")]
    Tls10,
    /// TLS 1.1.
    #[value(name = "VersionTLS11")]
    Tls11,
    /// TLS 1.2.
    #[value(name = "VersionTLS12")]
    Tls12,
    /// TLS 1.3.
    #[value(name = "VersionTLS13")]
    Tls13,
}

/// The cipher suites that Go names. rustls supports those with forward secrecy and an AEAD.
const KNOWN: [&str; 27] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// A cipher suite by Go's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherSuite(&'static str);

impl CipherSuite {
    /// Returns the names of the suites that can be served.
    pub(super) fn supported() -> Vec<&'static str> {
        let suites = ring::default_provider().cipher_suites;
        let is_supported = |name: &&str| suites.iter().any(|suite| Self::name_of(suite) == **name);
        KNOWN.into_iter().filter(is_supported).collect()
    }

    fn name_of(suite: &SupportedCipherSuite) -> String {
        format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
    }

    fn is(self, suite: &SupportedCipherSuite) -> bool {
        let name = Self::name_of(suite);
        // Go also has an older name, without the hash, for these suites.
        name == self.0 || self.0.ends_with("_POLY1305") && name.strip_suffix("_SHA256") == Some(self.0)
    }

    fn is_supported(self) -> bool {
        ring::default_provider()
            .cipher_suites
            .iter()
            .any(|suite| self.is(suite))
    }
}

/// A name that is none of Go's cipher suites.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected one of {}", CipherSuite::supported().join(", "))]
pub struct UnknownCipherSuite;

impl FromStr for CipherSuite {
    type Err = UnknownCipherSuite;

    fn from_str(text: &str) -> Result<Self, UnknownCipherSuite> {
        let known = KNOWN.into_iter().find(|name| *name == text);
        known.map(Self).ok_or(UnknownCipherSuite)
    }
}

/// The TLS versions and cipher suites to serve.
#[derive(Clone, Debug)]
pub(super) struct Protocols {
    lowest: TlsVersion,
    /// Empty: all that rustls recommends.
    suites: Vec<CipherSuite>,
}

impl Protocols {
    /// Returns `None` if suites are named and none of them can be served. Logs the suites and
    /// versions that cannot.
    pub(super) fn new(lowest: TlsVersion, suites: &[CipherSuite]) -> Option<Self> {
        if matches!(lowest, TlsVersion::Tls10 | TlsVersion::Tls11) {
            tracing::warn!("serving TLS 1.2 and later, because older versions are not supported");
        }
        let (supported, unsupported): (Vec<_>, Vec<_>) = suites.iter().partition(|suite| suite.is_supported());
        if !suites.is_empty() && supported.is_empty() {
            return None;
        }
        for CipherSuite(suite) in unsupported {
            tracing::warn!(suite, "ignoring unsupported cipher suite of --tls-cipher-suites");
        }
        Some(Self {
            lowest,
            suites: supported,
        })
    }

    /// Returns the provider with the suites. As in Go, the suites of TLS 1.3 cannot be chosen.
    pub(super) fn provider(&self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        if !self.suites.is_empty() {
            let is_chosen = |suite: &SupportedCipherSuite| {
                suite.version().version == ProtocolVersion::TLSv1_3 || self.suites.iter().any(|one| one.is(suite))
            };
            provider.cipher_suites.retain(is_chosen);
        }
        provider
    }

    /// Returns the versions for which there is a suite.
    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        let has_older = || {
            let suites = self.provider().cipher_suites;
            suites
                .iter()
                .any(|suite| suite.version().version == ProtocolVersion::TLSv1_2)
        };
        if self.lowest == TlsVersion::Tls13 || !has_older() {
            &TLS13_ONLY
        } else {
            rustls::ALL_VERSIONS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocols(lowest: TlsVersion, suites: &[&str]) -> Option<Protocols> {
        let suites: Vec<_> = suites.iter().map(|suite| suite.parse().unwrap()).collect();
        Protocols::new(lowest, &suites)
    }

    fn served(suites: &[&str]) -> Vec<String> {
        let provider = protocols(TlsVersion::Tls12, suites).unwrap().provider();
        let older = provider
            .cipher_suites
            .iter()
            .filter(|suite| suite.version().version == ProtocolVersion::TLSv1_2);
        older.map(CipherSuite::name_of).collect()
    }

    #[test]
    fn nine_suites_of_rustls_have_names_in_go() {
        assert_eq!(
            CipherSuite::supported().len(),
            ring::default_provider().cipher_suites.len()
        );
    }

    #[test]
    fn only_named_suites_are_served_with_tls_1_2() {
        assert_eq!(served(&[]).len(), 6);
        let one = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        assert_eq!(served(&[one, "TLS_RSA_WITH_AES_128_GCM_SHA256"]), [one]);
        let poly = ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"];
        assert_eq!(served(&["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"]), poly);
        assert_eq!(served(&poly), poly);
    }

    #[test]
    fn without_a_supported_suite_nothing_can_be_served() {
        assert!(protocols(TlsVersion::Tls12, &["TLS_RSA_WITH_AES_128_CBC_SHA"]).is_none());
        let error = "TLS_NULL".parse::<CipherSuite>().unwrap_err().to_string();
        assert!(error.contains("TLS_AES_128_GCM_SHA256"), "{error}");
    }

    #[test]
    fn the_lowest_version_decides_which_are_served() {
        let count = |lowest, suites: &[&str]| protocols(lowest, suites).unwrap().versions().len();
        assert_eq!(count(TlsVersion::Tls10, &[]), 2);
        assert_eq!(count(TlsVersion::Tls12, &[]), 2);
        assert_eq!(count(TlsVersion::Tls13, &[]), 1);
        assert_eq!(count(TlsVersion::Tls12, &["TLS_AES_128_GCM_SHA256"]), 1);
    }
}
