//! Reloads the certificate of the listener when its files change.
//!
//! The files are polled. Change notifications are unreliable here: Secret volumes swap symbolic
//! links, and network file systems send none.

use std::convert::Infallible;
use std::error::Error as _;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounterVec;
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::metrics::{RELOAD_FAILURE, RELOAD_SUCCESS};
use crate::tls::Files;

/// The interval between two comparisons of the files.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Replaces the TLS configuration for new connections whenever `files` change. Never returns. Open
/// connections continue. While a file is broken or the two files do not belong together, the
/// previous certificate remains in use.
pub(crate) async fn reload_certificate(
    files: Option<Files>,
    config: &watch::Sender<Arc<ServerConfig>>,
    reloads: &IntCounterVec,
) -> Infallible {
    let Some(mut current) = files else {
        return pending().await;
    };
    let mut last_failure = None;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let files = current.clone();
        // A file system that hangs must not block the health endpoints.
        let Ok(reloaded) = spawn_blocking(move || files.reload_if_changed()).await else {
            continue;
        };
        match reloaded {
            Ok(changed) => {
                if let Some(changed) = changed {
                    config.send_replace(changed.config);
                    current = changed.files.unwrap_or(current);
                    reloads.with_label_values(&[RELOAD_SUCCESS]).inc();
                    tracing::info!("reloaded the serving certificate");
                } else if last_failure.is_some() {
                    tracing::info!("found the previous serving certificate again");
                }
                last_failure = None;
            }
            Err(error) => {
                reloads.with_label_values(&[RELOAD_FAILURE]).inc();
                let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
                let failure = Some(format!("{error}{source}"));
                if failure != last_failure {
                    tracing::warn!(err = failure, "keeping previous serving certificate");
                }
                last_failure = failure;
            }
        }
    }
}
