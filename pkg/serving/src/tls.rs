//! The certificate of the listener: the operator's own, or a self-signed one that exists only in
//! memory.
//!
//! Architecture Invariant: no part of a private key reaches an error or a log. For a malformed
//! file, the PEM reader's errors quote the faulty line, which may be part of a key (also of the
//! certificate file, when the two files are swapped). These errors are dropped here.
//! Architecture Invariant: ring is used explicitly. No process-wide default provider is read or
//! set.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::Args;

/// An error in the certificate or its key.
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
    /// The file does not exist or cannot be read.
    #[error("failed to read {flag}={}: use a PEM file that this process can read", path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The certificate file contains broken PEM.
    #[error("failed to parse the PEM blocks of --tls-cert-file={}: one of them is truncated or broken; use the file as it was issued", path.display())]
    ParseCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The certificate file contains no certificate. The two files may be swapped.
    #[error("--tls-cert-file={} contains no certificate: it needs a PEM block BEGIN CERTIFICATE", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The key file contains no readable key.
    #[error("--tls-private-key-file={} contains no readable private key: it needs a PEM block BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY, unencrypted and with BEGIN and END on separate lines", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key is damaged or of an unsupported type.
    #[error("the key in --tls-private-key-file={} cannot be used: use an ECDSA P-256 or P-384, an Ed25519 or an RSA key of at least 2048 bits", path.display())]
    UnusableKey {
        /// The file.
        path: PathBuf,
    },
    /// The first certificate cannot be used.
    #[error("the first certificate in --tls-cert-file={} cannot be used", path.display())]
    UnusableCertificate {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rustls::Error,
    },
    /// The two files are valid but do not belong together.
    #[error("the key in --tls-private-key-file={} is not the key of the first certificate in --tls-cert-file={}: use a pair that was issued together, with the server's certificate first", key.display(), certificate.display())]
    KeyMismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The self-signed certificate cannot be generated.
    #[error(
        "failed to generate a self-signed certificate: set your own with --tls-cert-file and --tls-private-key-file"
    )]
    Generate {
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// rustls rejected the generated certificate or the TLS versions.
    #[error("failed to set up TLS")]
    SetUp {
        /// The cause.
        #[source]
        source: rustls::Error,
    },
}

/// A certificate in use, and the TLS configuration for it.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) config: Arc<rustls::ServerConfig>,
    /// The files to reload, or `None` for a self-signed certificate.
    pub(crate) files: Option<Files>,
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    certificate: PathBuf,
    key: PathBuf,
    /// A hash of the content.
    fingerprint: u64,
}

impl Files {
    fn new(certificate: &Path, key: &Path) -> Self {
        Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            fingerprint: fingerprint([certificate, key]),
        }
    }

    /// Loads the certificate if the content of a file has changed. Reads files, so it blocks.
    pub(crate) fn reload_if_changed(&self) -> Result<Option<Identity>, Error> {
        if fingerprint([&self.certificate, &self.key]) == self.fingerprint {
            return Ok(None);
        }
        Identity::load(&self.certificate, &self.key).map(Some)
    }
}

/// Returns a hash of the content of the files, or of the kind of error for unreadable files.
fn fingerprint(files: [&Path; 2]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in files {
        std::fs::read(file).map_err(|error| error.kind()).hash(&mut hasher);
    }
    hasher.finish()
}

impl Identity {
    /// Loads or generates the certificate, depending on the flags.
    pub(crate) fn from_args(args: &Args) -> Result<Self, Error> {
        const CERTIFICATE: &str = "--tls-cert-file";
        const KEY: &str = "--tls-private-key-file";
        match (&args.tls_cert_file, &args.tls_private_key_file) {
            (Some(certificate), Some(key)) => Self::load(certificate, key),
            (None, None) => Self::self_signed(args.bind_address),
            (Some(_), None) => Err(Error::Incomplete {
                given: CERTIFICATE,
                missing: KEY,
            }),
            (None, Some(_)) => Err(Error::Incomplete {
                given: KEY,
                missing: CERTIFICATE,
            }),
        }
    }

    fn load(certificate_file: &Path, key_file: &Path) -> Result<Self, Error> {
        // The hash is taken before the files are read for use. If they change in between, the next
        // poll notices it.
        let files = Files::new(certificate_file, key_file);
        let read = |flag, path: &Path| {
            std::fs::read(path).map_err(|source| Error::Read {
                flag,
                path: path.to_owned(),
                source,
            })
        };
        let text = read("--tls-cert-file", certificate_file)?;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|_| Error::ParseCertificate {
                path: certificate_file.to_owned(),
            })?;
        if chain.is_empty() {
            return Err(Error::NoCertificate {
                path: certificate_file.to_owned(),
            });
        }
        let text = read("--tls-private-key-file", key_file)?;
        let Ok(key) = PrivateKeyDer::from_pem_slice(&text) else {
            return Err(Error::NoKey {
                path: key_file.to_owned(),
            });
        };
        let Ok(key) = ring::sign::any_supported_type(&key) else {
            return Err(Error::UnusableKey {
                path: key_file.to_owned(),
            });
        };
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) => Self::new(certified, Some(files)),
            Err(rustls::Error::InconsistentKeys(_)) => Err(Error::KeyMismatch {
                certificate: certificate_file.to_owned(),
                key: key_file.to_owned(),
            }),
            Err(source) => Err(Error::UnusableCertificate {
                path: certificate_file.to_owned(),
                source,
            }),
        }
    }

    /// Generates a certificate for the names under which this process may be reached. It has no
    /// practical expiry date: the certificate exists only as long as the process, no client trusts
    /// it beforehand, and an expiry would only break a long-running daemon.
    fn self_signed(bind_address: IpAddr) -> Result<Self, Error> {
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let uname = rustix::system::uname();
        let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        // Not every host name is valid in a certificate. With an invalid one, the certificate is
        // still usable for localhost.
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
        let key = PrivateKeyDer::Pkcs8(generated.signing_key.serialize_der().into());
        let key = ring::sign::any_supported_type(&key).map_err(|source| Error::SetUp { source })?;
        Self::new(CertifiedKey::new(vec![generated.cert.der().clone()], key), None)
    }

    fn new(certified: CertifiedKey, files: Option<Files>) -> Result<Self, Error> {
        let leaf = certified.end_entity_cert().map_err(|source| Error::SetUp { source })?;
        let certificate = leaf.clone().into_owned();
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| Error::SetUp { source })?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            certificate,
            config: Arc::new(config),
            files,
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn write(&self, name: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        }

        /// Returns the error as the operator sees it, without the name of the folder.
        fn error(&self, certificate: Option<&Path>, key: Option<&Path>) -> String {
            let args = Args {
                tls_cert_file: certificate.map(Path::to_owned),
                tls_private_key_file: key.map(Path::to_owned),
                ..Args::default()
            };
            let error = Identity::from_args(&args).unwrap_err();
            let source = std::error::Error::source(&error)
                .map(|source| format!(": {source}"))
                .unwrap_or_default();
            format!("{error}{source}").replace(&self.0.path().display().to_string(), "")
        }
    }

    fn pair() -> (String, String) {
        let generated = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        (generated.cert.pem(), generated.signing_key.serialize_pem())
    }

    fn check(files: &Files, certificate: &Path, key: &Path, expected: &Expect) {
        expected.assert_eq(&files.error(Some(certificate), Some(key)));
    }

    #[test]
    fn one_flag_of_the_pair_is_rejected() {
        let files = Files::new();
        expect!["--tls-cert-file is set but --tls-private-key-file is not: set both to serve your own certificate, or neither for a self-signed one"].assert_eq(&files.error(Some(Path::new("/c")), None));
        expect!["--tls-private-key-file is set but --tls-cert-file is not: set both to serve your own certificate, or neither for a self-signed one"].assert_eq(&files.error(None, Some(Path::new("/k"))));
    }

    #[test]
    fn pair_is_loaded_and_its_leaf_is_served() {
        let files = Files::new();
        let (certificate, key) = pair();
        let (other, _) = pair();
        let chain = files.write("chain", &format!("some text\n{certificate}{other}"));
        let identity = Identity::load(&chain, &files.write("key", &key)).unwrap();
        assert_eq!(
            identity.certificate,
            CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()
        );
    }

    #[test]
    fn errors_name_the_bad_file() {
        let files = Files::new();
        let (certificate_text, key_text) = pair();
        let certificate = files.write("certificate", &certificate_text);
        let key = files.write("key", &key_text);
        check(
            &files,
            &files.0.path().join("absent"),
            &key,
            &expect![
                "failed to read --tls-cert-file=/absent: use a PEM file that this process can read: No such file or directory (os error 2)"
            ],
        );
        check(
            &files,
            &certificate,
            &files.0.path().join("absent"),
            &expect![
                "failed to read --tls-private-key-file=/absent: use a PEM file that this process can read: No such file or directory (os error 2)"
            ],
        );
        check(
            &files,
            &key,
            &certificate,
            &expect!["--tls-cert-file=/key contains no certificate: it needs a PEM block BEGIN CERTIFICATE"],
        );
        check(
            &files,
            &files.write("empty", ""),
            &key,
            &expect!["--tls-cert-file=/empty contains no certificate: it needs a PEM block BEGIN CERTIFICATE"],
        );
        check(
            &files,
            &files.write("cut", &certificate_text[..200]),
            &key,
            &expect![
                "failed to parse the PEM blocks of --tls-cert-file=/cut: one of them is truncated or broken; use the file as it was issued"
            ],
        );
    }

    #[test]
    fn errors_name_the_unusable_pair() {
        let files = Files::new();
        let (certificate, key) = pair();
        let certificate = files.write("certificate", &certificate);
        let key = files.write("key", &key);
        let garbage = "-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n";
        check(
            &files,
            &files.write("garbage", garbage),
            &key,
            &expect![
                "the first certificate in --tls-cert-file=/garbage cannot be used: invalid peer certificate: BadEncoding"
            ],
        );
        let garbage = "-----BEGIN PRIVATE KEY-----\nMTIz\n-----END PRIVATE KEY-----\n";
        check(
            &files,
            &certificate,
            &files.write("garbage-key", garbage),
            &expect![
                "the key in --tls-private-key-file=/garbage-key cannot be used: use an ECDSA P-256 or P-384, an Ed25519 or an RSA key of at least 2048 bits"
            ],
        );
        check(
            &files,
            &certificate,
            &files.write("other", &pair().1),
            &expect![
                "the key in --tls-private-key-file=/other is not the key of the first certificate in --tls-cert-file=/certificate: use a pair that was issued together, with the server's certificate first"
            ],
        );
    }

    #[test]
    fn errors_do_not_quote_a_key_on_one_line() {
        let files = Files::new();
        let (certificate, key) = pair();
        let certificate = files.write("certificate", &certificate);
        let key = files.write("key", &key.replace('\n', ""));
        check(
            &files,
            &key,
            &certificate,
            &expect![
                "failed to parse the PEM blocks of --tls-cert-file=/key: one of them is truncated or broken; use the file as it was issued"
            ],
        );
        check(
            &files,
            &certificate,
            &key,
            &expect![
                "--tls-private-key-file=/key contains no readable private key: it needs a PEM block BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY, unencrypted and with BEGIN and END on separate lines"
            ],
        );
    }
}
