//! The CA certificates of the apiserver that controllers publish.
//!
//! They come from a file, which is read again and again, or from the daemon's own connection. A
//! file that cannot be used is reported, and its last good content is kept.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_client::{Authorities, error_chain};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::task::spawn_blocking;

/// The interval between two reads of the file. Change notifications are unreliable for Secret
/// volumes and network file systems.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The longest file that is read, as long as the data of a ConfigMap may be.
const MOST_BYTES: u64 = 1024 * 1024;

/// The CA certificates of the apiserver, in PEM. Cheap to clone.
#[derive(Clone)]
pub struct RootCa(Arc<Inner>);

struct Inner {
    source: Source,
    current: Mutex<Arc<str>>,
}

enum Source {
    File(PathBuf),
    Connection(Authorities),
}

/// CA certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootCaError {
    /// The file cannot be read as text.
    #[error("failed to read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is too long to be published.
    #[error("{path} is longer than 1 MiB")]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file has no certificates, or one of them is broken.
    #[error("{path} contains no valid PEM certificates")]
    NoCertificates {
        /// The file.
        path: PathBuf,
    },
    /// The file also has a private key, which everybody could read.
    #[error("{path} contains a private key, and its content is published in every namespace: keep the key elsewhere")]
    PrivateKey {
        /// The file.
        path: PathBuf,
    },
    /// There is no file, and the connection verifies the apiserver without a CA.
    #[error("the daemon's own configuration names no CA of the apiserver")]
    NoAuthorities,
}

impl RootCa {
    /// Returns the CA in this file, or else that of the daemon's own connection. Reads the file.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be used, or when neither has a CA.
    pub fn open(path: Option<PathBuf>, authorities: &Authorities) -> Result<Self, RootCaError> {
        let (source, current) = if let Some(path) = path {
            let current = read(&path)?;
            (Source::File(path), current)
        } else {
            let current = authorities.pem().ok_or(RootCaError::NoAuthorities)?;
            (Source::Connection(authorities.clone()), current)
        };
        let current = Mutex::new(current);
        Ok(Self(Arc::new(Inner { source, current })))
    }

    /// Returns the certificates in PEM, as they are in the file.
    pub fn pem(&self) -> Arc<str> {
        Arc::clone(&self.0.current.lock())
    }

    /// Waits for other certificates.
    pub(crate) async fn changed(&self) {
        match &self.0.source {
            Source::File(path) => self.file_changed(path).await,
            Source::Connection(authorities) => {
                let mut receiver = authorities.subscribe();
                let changed = receiver.wait_for(|pem| pem.as_ref().is_some_and(|pem| self.replace(pem)));
                // The sender lives as long as `authorities`, so this is no error.
                changed.await.ok();
            }
        }
    }

    async fn file_changed(&self, path: &Path) {
        let mut last_failure = None;
        loop {
            let path = path.to_owned();
            // An error means that the runtime shuts down.
            let Ok(result) = spawn_blocking(move || read(&path)).await else {
                return std::future::pending().await;
            };
            let failure = match result {
                Ok(pem) if self.replace(&pem) => {
                    tracing::info!("reloaded the root CA");
                    return;
                }
                Ok(_) => None,
                Err(error) => Some(error_chain(&error)),
            };
            if failure.is_some() && failure != last_failure {
                tracing::warn!(err = failure, "keeping the previous root CA");
            }
            last_failure = failure;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns whether these certificates are other ones.
    fn replace(&self, pem: &Arc<str>) -> bool {
        let mut current = self.0.current.lock();
        let is_changed = *current != *pem;
        current.clone_from(pem);
        is_changed
    }
}

/// Reads a file of certificates. A file that is just being written is broken, or lacks certificates
/// until the next read.
fn read(path: &Path) -> Result<Arc<str>, RootCaError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_string(&mut text));
    let path = || path.to_owned();
    read.map_err(|source| RootCaError::Read { path: path(), source })?;
    if text.len() as u64 > MOST_BYTES {
        return Err(RootCaError::TooLong { path: path() });
    }
    if text.contains("PRIVATE KEY-----") {
        return Err(RootCaError::PrivateKey { path: path() });
    }
    let mut store = RootCertStore::empty();
    let mut certificates = CertificateDer::pem_slice_iter(text.as_bytes());
    let are_valid = certificates.all(|certificate| certificate.is_ok_and(|valid| store.add(valid).is_ok()));
    if !are_valid || store.is_empty() {
        return Err(RootCaError::NoCertificates { path: path() });
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests;
