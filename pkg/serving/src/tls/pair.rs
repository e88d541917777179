//! A certificate and its key in two files.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// The length of a chain in bytes. Clients in Go, such as the kubelet and Prometheus, reject a
/// handshake message of more than 64 KiB.
const LONGEST_CHAIN: usize = 60_000;

/// A file and the flag that names it. It is displayed as `--flag=/path`. The key of a Secret is
/// displayed as `key of --flag=namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagFile {
    flag: &'static str,
    path: PathBuf,
    key: Option<&'static str>,
}

impl FlagFile {
    pub(super) fn new(flag: &'static str, path: &Path) -> Self {
        Self {
            flag,
            path: path.to_owned(),
            key: None,
        }
    }

    /// Returns the key of a Secret.
    pub(super) fn of_secret(flag: &'static str, secret: &str, key: &'static str) -> Self {
        Self {
            flag,
            path: secret.into(),
            key: Some(key),
        }
    }
}

impl fmt::Display for FlagFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = self.key {
            write!(f, "{key} of ")?;
        }
        write!(f, "{}={}", self.flag, self.path.display())
    }
}

/// A certificate and a key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The file does not exist or cannot be read.
    #[error("failed to read {file}: use a PEM file that this process can read")]
    Read {
        /// The file.
        file: FlagFile,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The certificate file contains broken PEM.
    #[error(
        "failed to parse the PEM blocks of {file}: one of them is truncated or broken; use the file as it was issued"
    )]
    ParseCertificate {
        /// The file.
        file: FlagFile,
    },
    /// The certificate file contains no certificate. The two files may be swapped.
    #[error("{file} contains no certificate: it needs a PEM block BEGIN CERTIFICATE")]
    NoCertificate {
        /// The file.
        file: FlagFile,
    },
    /// The key file contains no readable key.
    #[error(
        "{file} contains no readable private key: it needs a PEM block BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY, unencrypted and with BEGIN and END on separate lines"
    )]
    NoKey {
        /// The file.
        file: FlagFile,
    },
    /// The key is damaged or of an unsupported type.
    #[error(
        "the key in {file} cannot be used: use an ECDSA P-256 or P-384, an Ed25519 or an RSA key of at least 2048 bits"
    )]
    UnusableKey {
        /// The file.
        file: FlagFile,
    },
    /// The first certificate cannot be used.
    #[error("the first certificate in {file} cannot be used")]
    UnusableCertificate {
        /// The file.
        file: FlagFile,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// The chain is too long for clients.
    #[error(
        "the certificates in {file} have {length} bytes, and clients accept {LONGEST_CHAIN}: keep only the server's certificate and its intermediate ones"
    )]
    ChainTooLong {
        /// The file.
        file: FlagFile,
        /// The length of all certificates.
        length: usize,
    },
    /// The certificate has expired or is not valid yet.
    #[error("the certificate in {file} is valid from {from} to {to}, not now: issue another one")]
    NotValid {
        /// The file.
        file: FlagFile,
        /// The begin of its validity.
        from: Timestamp,
        /// The end of its validity.
        to: Timestamp,
    },
    /// The two files are valid but do not belong together.
    #[error(
        "the key in {key} is not the key of the first certificate in {certificate}: use a pair that was issued together, with the server's certificate first"
    )]
    KeyMismatch {
        /// The certificate's file.
        certificate: FlagFile,
        /// The key's file.
        key: FlagFile,
    },
}

/// The files of a certificate and of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(super) certificate: FlagFile,
    pub(super) key: FlagFile,
}

impl Pair {
    /// Reads the files, so it blocks.
    pub(super) fn load(&self) -> Result<CertifiedKey, PairError> {
        self.parse(&read(&self.certificate)?, &read(&self.key)?)
    }

    /// Parses a certificate and its key in PEM. `self` names them in errors.
    pub(super) fn parse(&self, certificate_pem: &[u8], key_pem: &[u8]) -> Result<CertifiedKey, PairError> {
        let Self { certificate, key } = self;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate_pem)
            .collect::<Result<_, _>>()
            .map_err(|_| PairError::ParseCertificate {
                file: certificate.clone(),
            })?;
        if chain.is_empty() {
            return Err(PairError::NoCertificate {
                file: certificate.clone(),
            });
        }
        let length = chain.iter().map(|certificate| certificate.len()).sum();
        if length > LONGEST_CHAIN {
            return Err(PairError::ChainTooLong {
                file: certificate.clone(),
                length,
            });
        }
        let Ok(private) = PrivateKeyDer::from_pem_slice(key_pem) else {
            return Err(PairError::NoKey { file: key.clone() });
        };
        let Ok(private) = ring::sign::any_supported_type(&private) else {
            return Err(PairError::UnusableKey { file: key.clone() });
        };
        let certified = CertifiedKey::new(chain, private);
        match certified.keys_match() {
            Ok(()) => Ok(certified),
            Err(rustls::Error::InconsistentKeys(_)) => Err(PairError::KeyMismatch {
                certificate: certificate.clone(),
                key: key.clone(),
            }),
            Err(source) => Err(PairError::UnusableCertificate {
                file: certificate.clone(),
                source,
            }),
        }
    }
}

fn read(file: &FlagFile) -> Result<Vec<u8>, PairError> {
    std::fs::read(&file.path).map_err(|source| PairError::Read {
        file: file.clone(),
        source,
    })
}

/// Returns a hash of the content of the files, or of the kind of error for unreadable files.
pub(super) fn fingerprint<'a>(pairs: impl Iterator<Item = &'a Pair>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in pairs.flat_map(|pair| [&pair.certificate, &pair.key]) {
        std::fs::read(&file.path)
            .map_err(|error| error.kind())
            .hash(&mut hasher);
    }
    hasher.finish()
}
