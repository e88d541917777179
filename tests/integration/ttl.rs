//! ttl-after-finished-controller on the real apiserver, as a ServiceAccount with exactly the rights that `portreeve rbac` prints.
//!
//! No other controller runs here. Tests end Jobs themselves, and a Job that is deleted in the foreground stays with the finalizer that the
//! garbage collector would take away: so what was deleted, and when, can be looked at.

mod faults;
pub(crate) mod fixtures;
mod life;
mod process;
