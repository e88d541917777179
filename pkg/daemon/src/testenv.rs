//! `portreeve testenv`: the controllers that a control plane for tests lacks.
//!
//! It is the daemon with other settings: no Lease, no waits that only several apiservers need, no
//! limit of retries, and an end within a second. In addition it refuses apiservers on other
//! machines, reports when it is ready, answers at `/settled` whether anything is left to do, and
//! ends with its standard input.

mod apiserver;
mod ready;
mod settled;
mod stdin;

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use axum::{Router, http::Uri};
use portreeve_manager::Settling;
use portreeve_reconcile::Shutdown;

use self::ready::Announcement;
pub(crate) use self::{ready::ReadyFile, stdin::closed as stdin_closed};

/// What the daemon does differently for this command.
pub(crate) struct Settings {
    /// The port of the listener on 127.0.0.1.
    pub(crate) port: u16,
    pub(crate) allow_remote: bool,
    pub(crate) ready_file: Option<ReadyFile>,
}

/// The reason why the command fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `--controllers` has names of other controllers.
    #[error("unknown controllers in --controllers: {unknown}; testenv runs {known}")]
    Controllers {
        /// The unknown names.
        unknown: String,
        /// The names of the command's controllers.
        known: String,
    },
    /// The apiserver is on another machine.
    #[error(
        "the apiserver {url} is at {address}, which is not a loopback address: testenv deletes objects without a Lease, so \
         set --kubeconfig to a control plane for tests on this machine, or set --allow-remote"
    )]
    Remote {
        /// The apiserver's URL.
        url: Uri,
        /// The address that is not one of this machine.
        address: IpAddr,
    },
    /// The addresses of the apiserver are unknown.
    #[error(
        "failed to find out whether the apiserver {url} is on this machine; correct the server in --kubeconfig, or set \
         --allow-remote"
    )]
    Resolve {
        /// The apiserver's URL.
        url: Uri,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("failed to print that testenv is ready")]
    Print(#[source] io::Error),
    /// The file of `--ready-file` cannot be written.
    #[error("failed to write --ready-file {path}; set it to a file in a folder that exists and can be written")]
    ReadyFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Returns the route of `/settled`, and what to report once the caches are synced; neither for the
/// daemon itself. `https` is the address and the certificate of the listener.
pub(crate) fn serve(
    settings: Option<Settings>,
    https: Option<(SocketAddr, Vec<u8>)>,
    settling: Settling,
    stop: &Shutdown,
) -> (Router, Option<Announcement>) {
    let (Some(Settings { ready_file, .. }), Some((address, certificate))) = (settings, https) else {
        return (Router::new(), None);
    };
    let route = settled::route(settling.clone(), stop);
    let announcement = Announcement {
        settling,
        address,
        certificate,
        ready_file,
    };
    (route, Some(announcement))
}

/// Checks that the apiserver is on this machine, unless the flags accept another one. Returns the
/// port of the listener.
pub(crate) async fn check(settings: Option<&Settings>, url: &Uri) -> Result<Option<u16>, Error> {
    let Some(settings) = settings else { return Ok(None) };
    if !settings.allow_remote {
        apiserver::ensure_local(url).await?;
    }
    Ok(Some(settings.port))
}

/// Reports that the command is ready, once it is. Returns only if that fails.
pub(crate) async fn announce(announcement: Option<Announcement>) -> Result<Infallible, Error> {
    if let Some(announcement) = announcement {
        announcement.announce().await?;
    }
    pending().await
}
