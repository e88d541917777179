//! CronTab and CronJob, on the real apiserver, as a ServiceAccount with exactly the rights that
//! `portreeve rbac` prints.
//!
//! The daemon runs inside the test with a clock that the test sets, so that no test waits for the
//! next minute.

mod environment;
mod failures;
mod life;
mod names;
mod namespaces;
mod process;
pub(crate) mod profile;
mod restored;
mod steps;
mod unseen;
