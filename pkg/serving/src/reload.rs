//! Reloads the certificate of the listener when its files change or the caller replaces it.
//!
//! The files are polled. Change notifications are unreliable here: Secret volumes swap symbolic
//! links, and network file systems send none.

use std::convert::Infallible;
use std::error::Error as _;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::CertificateSink;
use crate::metrics::{Metrics, RELOAD_FAILURE, RELOAD_SUCCESS};
use crate::tls::Loaded;

/// The interval between two comparisons of the files.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Replaces the TLS configuration for new connections whenever the files or the certificate of the
/// sink change. Never returns. Open connections continue. While a file is broken or the two files
/// do not belong together, the previous certificate remains in use.
pub(crate) async fn reload_certificate(
    listener: &str,
    mut current: Loaded,
    sink: &CertificateSink,
    config: &watch::Sender<Arc<ServerConfig>>,
    metrics: &Metrics,
) -> Infallible {
    let mut replaced = sink.subscribe();
    // The caller may have replaced the certificate before this call.
    replaced.mark_changed();
    let mut last_failure = None;
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL), if current.has_files() => {}
            Ok(()) = replaced.changed() => match &*replaced.borrow_and_update() {
                Some(certificate) => current.replace_default(Arc::clone(certificate)),
                None => continue,
            },
            else => pending().await,
        }
        let loaded = current.clone();
        // A file system that hangs must not block the health endpoints.
        let Ok(reloaded) = spawn_blocking(move || loaded.reload_if_changed()).await else {
            continue;
        };
        match reloaded {
            Ok(Some(identity)) => {
                metrics.use_certificate(&identity);
                config.send_replace(identity.config);
                current = identity.loaded;
                metrics.certificate_reloads.with_label_values(&[RELOAD_SUCCESS]).inc();
                tracing::info!(listener, "reloaded the serving certificate");
                last_failure = None;
            }
            Ok(None) => {
                if last_failure.take().is_some() {
                    tracing::info!(listener, "found the previous serving certificate again");
                }
            }
            Err(error) => {
                metrics.certificate_reloads.with_label_values(&[RELOAD_FAILURE]).inc();
                let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                let failure = Some(format!("{error}{source}"));
                if failure != last_failure {
                    tracing::warn!(listener, err = failure, "keeping previous serving certificate");
                }
                last_failure = failure;
            }
        }
    }
}
