//! Access control for a listener whose only client is the apiserver.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use http::HeaderMap;
use parking_lot::RwLock;
use portreeve_client::error_chain;
use portreeve_serving::{AccessControl, AccessError, Decision, User};
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::time::sleep;

use crate::{client_certificate::CaBundle, delegated::Error, lookup::read_bundle};

/// The pause between two reads of the file.
const INTERVAL: Duration = Duration::from_secs(30);

/// Admits the clients whose certificates a CA has issued. Without a CA, it admits everybody.
#[derive(Debug)]
pub struct CertificateAccess {
    ca: Option<CaFile>,
}

#[derive(Debug)]
struct CaFile {
    flag: &'static str,
    path: PathBuf,
    bundle: RwLock<CaBundle>,
    has_rejected: AtomicBool,
}

impl CaFile {
    /// Logs the first rejection: if it is the apiserver's, all of its calls fail.
    fn report(&self, reason: String) -> String {
        if !self.has_rejected.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                reason,
                flag = self.flag,
                "rejecting a request without a valid client certificate; further ones are not logged"
            );
        }
        reason
    }
}

impl CertificateAccess {
    /// Returns access control that admits everybody.
    pub fn everybody() -> Self {
        Self { ca: None }
    }

    /// Reads the CAs from the file that `flag` names. Changes of the file are noticed within 30 s.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be used.
    pub async fn from_file(flag: &'static str, path: PathBuf) -> Result<Self, Error> {
        let bundle = read_bundle(flag, path.clone())
            .await
            .map_err(|error| Error::ClientCa(Box::new(error)))?;
        Ok(Self {
            ca: Some(CaFile {
                flag,
                path,
                bundle: RwLock::new(bundle),
                has_rejected: AtomicBool::new(false),
            }),
        })
    }
}

impl AccessControl for CertificateAccess {
    fn authenticate<'a>(
        &'a self,
        certificates: &'a [CertificateDer<'static>],
        _: &'a HeaderMap,
    ) -> BoxFuture<'a, Result<User, AccessError>> {
        Box::pin(async move {
            let Some(ca) = self.ca.as_ref().filter(|_| !certificates.is_empty()) else {
                return Ok(User::anonymous());
            };
            let subject = ca.bundle.read().verify(certificates, UnixTime::now());
            let subject = subject.map_err(|error| AccessError::new(ca.report(error_chain(&error))))?;
            Ok(subject.into_user().unwrap_or_else(User::anonymous))
        })
    }

    fn authorize<'a>(&'a self, user: &'a User, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Decision, AccessError>> {
        Box::pin(async move {
            match &self.ca {
                Some(ca) if user.is_anonymous() => {
                    let reason = format!("present a client certificate of a CA in {}", ca.flag);
                    Ok(Decision::Denied(ca.report(reason)))
                }
                _ => Ok(Decision::Allowed),
            }
        })
    }

    fn maintain(&self) -> BoxFuture<'_, String> {
        Box::pin(async {
            let Some(CaFile { flag, path, bundle, .. }) = &self.ca else {
                return std::future::pending().await;
            };
            let mut last_failure = None;
            loop {
                sleep(INTERVAL).await;
                let failure = match read_bundle(flag, path.clone()).await {
                    Ok(read) => {
                        *bundle.write() = read;
                        None
                    }
                    Err(error) => Some(error_chain(&error)),
                };
                if failure.is_some() && failure != last_failure {
                    tracing::warn!(err = failure, "keeping previous CAs of webhook clients");
                }
                last_failure = failure;
            }
        })
    }
}
