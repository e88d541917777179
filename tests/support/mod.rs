//! Shared code of the daemon's tests: the executable as a supervised process, its endpoints, and
//! Foos in their own namespace.

pub(crate) mod admin;
pub(crate) mod admission_gate;
pub(crate) mod daemon;
pub(crate) mod fixtures;
pub(crate) mod manifests;

use std::time::Duration;

/// The time limit for operations that take milliseconds on an idle machine. It is long because
/// tests share two cores with each other and with compilers. It delays only the report of a
/// failure.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// The time limit for operations that may be retried. The longest backoff is 30 s, and several
/// failures can occur in a row.
pub(crate) const RETRY_LIMIT: Duration = Duration::from_secs(90);
