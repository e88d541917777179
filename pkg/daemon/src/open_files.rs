//! The limit on open files.
//!
//! Each watch has its own connection, so a cluster with many resources needs more files than the
//! usual soft limit of 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit, as programs in Go do.
///
/// The soft limit protects programs that call `select`, which this program does not. Credential
/// plugins inherit the raised limit.
pub(crate) fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // `None`, which is logged as an absent field, means unlimited.
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(from = limit.current, to = limit.maximum, "raised limit on open files"),
        Err(err) => tracing::warn!(%err, limit = limit.current, "failed to raise limit on open files"),
    }
}
