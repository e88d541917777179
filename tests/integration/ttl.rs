//! ttl-after-finished-controller on the real apiserver, as a ServiceAccount with exactly the rights
//! that `portreeve rbac` prints.
//!
//! No other controller runs here. Tests finish Jobs themselves. A Job that is deleted in the
//! foreground keeps its finalizer, because no garbage collector removes it. So the tests can check
//! which Jobs were deleted, and when.

mod environment;
mod life;
mod process;
pub(crate) mod profile;
mod recovery;
