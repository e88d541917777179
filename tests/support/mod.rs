//! What the tests of the daemon share: the executable as a supervised process, its endpoints, and Foos in a namespace of their own.

pub(crate) mod admin;
pub(crate) mod admission_gate;
pub(crate) mod daemon;
pub(crate) mod fixtures;
pub(crate) mod manifests;

use std::time::Duration;

/// For what takes milliseconds on an idle machine. Long, because tests share two cores with each other and with compilers: it only
/// decides how late a failure is seen.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);
/// For what may have to be tried again: the longest that anything waits after a failure is half a minute, and one failure may follow
/// another.
pub(crate) const SETTLED: Duration = Duration::from_secs(90);
