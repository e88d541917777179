//! The TLS configuration of the listener: the operator's certificates, or a self-signed one that
//! exists only in memory, and the versions and cipher suites.
//!
//! Architecture Invariant: no part of a private key reaches an error or a log. For a malformed
//! file, the PEM reader's errors quote the faulty line, which may be part of a key (also of the
//! certificate file, when the two files are swapped). These errors are dropped here.
//! Architecture Invariant: ring is used explicitly. No process-wide default provider is read or
//! set.

mod names;
mod options;
mod pair;
mod replaced;
mod stored;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use self::names::CertificatesByName;
pub use self::names::{InvalidNamedPair, NamedPair};
use self::options::Protocols;
pub use self::options::{CipherSuite, TlsVersion, UnknownCipherSuite};
pub use self::pair::{FlagFile, PairError};
use self::pair::{Pair, fingerprint};
pub use self::replaced::CertificateSink;
use crate::client_certificate::AnyClientCertificate;

const CERTIFICATE: &str = "--tls-cert-file";
const SECRET: &str = "--tls-secret";
const KEY: &str = "--tls-private-key-file";
pub(crate) const NAMED_PAIR: &str = "--tls-sni-cert-key";

/// An error in the TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One flag of the pair is missing.
    #[error(
        "{given} is set but {missing} is not: set both to serve your own certificate, or neither for a self-signed one"
    )]
    Incomplete {
        /// The flag that is set.
        given: &'static str,
        /// The flag that is missing.
        missing: &'static str,
    },
    /// Two flags name a certificate.
    #[error("{SECRET} and {other} are both set: set only one of them")]
    TwoSources {
        /// The flag that is set besides `--tls-secret`.
        other: &'static str,
    },
    /// A certificate or its key cannot be used.
    #[error(transparent)]
    Pair(PairError),
    /// The self-signed certificate cannot be generated.
    #[error(
        "failed to generate a self-signed certificate: set your own with --tls-cert-file and --tls-private-key-file"
    )]
    Generate {
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// The self-signed certificate cannot be stored.
    #[error("failed to write {}: name a folder in --cert-dir that this process can write to", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// None of the cipher suites of the flag can be served.
    #[error(
        "none of the cipher suites in --tls-cipher-suites is supported: name at least one of {}",
        CipherSuite::supported().join(", ")
    )]
    NoCipherSuite,
    /// rustls rejected the generated certificate or the TLS versions.
    #[error("failed to set up TLS")]
    SetUp {
        /// The cause.
        #[source]
        source: rustls::Error,
    },
}

/// The values of the flags.
pub(crate) struct Settings<'a> {
    pub(crate) certificate: Option<&'a Path>,
    pub(crate) key: Option<&'a Path>,
    /// The folder of a self-signed certificate.
    pub(crate) folder: Option<&'a Path>,
    /// Whether the certificate comes from a Secret, through a [`CertificateSink`].
    pub(crate) has_secret: bool,
    pub(crate) named: &'a [NamedPair],
    pub(crate) lowest_version: TlsVersion,
    pub(crate) suites: &'a [CipherSuite],
    /// The address that a self-signed certificate names.
    pub(crate) bind_address: IpAddr,
}

/// The certificates in use, and the TLS configuration for them.
#[derive(Debug)]
pub(crate) struct Identity {
    /// The certificate for clients that name no other server.
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) expires_at: Timestamp,
    pub(crate) config: Arc<rustls::ServerConfig>,
    /// What to load again when it changes.
    pub(crate) loaded: Loaded,
}

/// The certificates in use.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    sources: Sources,
    /// A hash of the content of the files. `None` if another certificate replaces the default one.
    fingerprint: Option<u64>,
}

/// Where the certificates come from.
#[derive(Clone, Debug)]
struct Sources {
    default: DefaultCertificate,
    named: Vec<NamedPair>,
    protocols: Protocols,
}

#[derive(Clone, Debug)]
enum DefaultCertificate {
    Files(Pair),
    /// Self-signed, or from a Secret.
    InMemory(Arc<CertifiedKey>),
}

impl Loaded {
    /// Returns whether a certificate comes from files.
    pub(crate) fn has_files(&self) -> bool {
        self.sources.pairs().next().is_some()
    }

    /// Replaces the default certificate from the next reload on.
    pub(crate) fn replace_default(&mut self, certificate: Arc<CertifiedKey>) {
        self.sources.default = DefaultCertificate::InMemory(certificate);
        self.fingerprint = None;
    }

    /// Loads the certificates if one was replaced or the content of a file has changed. Reads
    /// files, so it blocks.
    pub(crate) fn reload_if_changed(&self) -> Result<Option<Identity>, Error> {
        if self.fingerprint == Some(self.sources.fingerprint()) {
            return Ok(None);
        }
        Identity::load(self.sources.clone()).map(Some)
    }
}

impl Sources {
    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        let default = match &self.default {
            DefaultCertificate::Files(pair) => Some(pair),
            DefaultCertificate::InMemory(_) => None,
        };
        default.into_iter().chain(self.named.iter().map(|named| &named.pair))
    }

    fn fingerprint(&self) -> u64 {
        fingerprint(self.pairs())
    }
}

impl Identity {
    /// Loads or generates the certificates, depending on the flags.
    pub(crate) fn new(settings: &Settings<'_>) -> Result<Self, Error> {
        let others = [
            (CERTIFICATE, settings.certificate),
            (KEY, settings.key),
            (stored::FLAG, settings.folder),
        ];
        let other = others.into_iter().find(|(_, path)| path.is_some());
        if let (true, Some((other, _))) = (settings.has_secret, other) {
            return Err(Error::TwoSources { other });
        }
        let default = match (settings.certificate, settings.key) {
            (Some(certificate), Some(key)) => DefaultCertificate::Files(Pair {
                certificate: FlagFile::new(CERTIFICATE, certificate),
                key: FlagFile::new(KEY, key),
            }),
            (None, None) => match settings.folder {
                Some(folder) => DefaultCertificate::Files(stored::pair(folder, settings.bind_address)?),
                None => DefaultCertificate::InMemory(Arc::new(self_signed(settings.bind_address)?.certified()?)),
            },
            (Some(_), None) => {
                return Err(Error::Incomplete {
                    given: CERTIFICATE,
                    missing: KEY,
                });
            }
            (None, Some(_)) => {
                return Err(Error::Incomplete {
                    given: KEY,
                    missing: CERTIFICATE,
                });
            }
        };
        Self::load(Sources {
            default,
            named: settings.named.to_vec(),
            protocols: Protocols::new(settings.lowest_version, settings.suites).ok_or(Error::NoCipherSuite)?,
        })
    }

    fn load(sources: Sources) -> Result<Self, Error> {
        // The hash is taken before the files are read for use. If they change in between, the next
        // poll notices it.
        let fingerprint = sources.fingerprint();
        let default = match &sources.default {
            DefaultCertificate::Files(pair) => Arc::new(pair.load().map_err(Error::Pair)?),
            DefaultCertificate::InMemory(certified) => Arc::clone(certified),
        };
        let leaf = default.end_entity_cert().map_err(|source| Error::SetUp { source })?;
        let certificate = leaf.clone().into_owned();
        let expires_at = replaced::expires_at(&default);
        let resolver = CertificatesByName::load(default, &sources.named).map_err(Error::Pair)?;
        let provider = sources.protocols.provider();
        let clients = AnyClientCertificate(provider.signature_verification_algorithms);
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(sources.protocols.versions())
            .map_err(|source| Error::SetUp { source })?
            .with_client_cert_verifier(Arc::new(clients))
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            certificate,
            expires_at,
            config: Arc::new(config),
            loaded: Loaded {
                sources,
                fingerprint: Some(fingerprint),
            },
        })
    }
}

/// Generates a certificate for the names under which this process may be reached. It has no
/// practical expiry date: the certificate exists only as long as the process, no client trusts it
/// beforehand, and an expiry would only break a long-running daemon.
fn self_signed(bind_address: IpAddr) -> Result<SelfSigned, Error> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let uname = rustix::system::uname();
    let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    // Not every host name is valid in a certificate. With an invalid one, the certificate is still
    // usable for localhost.
    if let Ok(host) = uname.nodename().to_str()
        && !host.is_empty()
        && host.chars().all(is_host_char)
    {
        names.push(host.to_owned());
    }
    if !bind_address.is_unspecified() {
        names.push(bind_address.to_string());
    }
    names.sort_unstable();
    names.dedup();

    let generated = rcgen::generate_simple_self_signed(names).map_err(|source| Error::Generate { source })?;
    Ok(SelfSigned(generated))
}

/// A generated certificate and its key.
struct SelfSigned(rcgen::CertifiedKey<rcgen::KeyPair>);

impl SelfSigned {
    fn certified(&self) -> Result<CertifiedKey, Error> {
        let key = PrivateKeyDer::Pkcs8(self.0.signing_key.serialize_der().into());
        let key = ring::sign::any_supported_type(&key).map_err(|source| Error::SetUp { source })?;
        Ok(CertifiedKey::new(vec![self.0.cert.der().clone()], key))
    }
}

#[cfg(test)]
mod tests;
