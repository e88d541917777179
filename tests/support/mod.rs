//! Shared code of the daemon's tests: the executable as a supervised process, its endpoints, and
//! Foos in their own namespace.

pub(crate) mod admin;
pub(crate) mod admission_gate;
pub(crate) mod daemon;
pub(crate) mod fixtures;
pub(crate) mod manifests;

use std::time::Duration;

/// The time limit for operations that take milliseconds on an idle machine. It is long because
/// tests share two cores with each other and with compilers; it only determines how late a failure
/// shows.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// The time limit for operations that may be retried: the longest backoff is 30 s, and several
/// failures can follow each other.
pub(crate) const SETTLED: Duration = Duration::from_secs(90);
