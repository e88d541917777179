//! CronTab and CronJob: one engine, on the real apiserver, as a ServiceAccount with exactly the rights that `portreeve rbac` prints.
//!
//! Time is the tests': the daemon runs in the test, by a clock that the test sets, so that nobody waits for a minute to come.

pub(crate) mod faults;
pub(crate) mod fixtures;
pub(crate) mod kinds;
mod life;
mod process;
mod steps;
