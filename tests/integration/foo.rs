//! Tests of the foo-controller on the shared control plane.

mod conflict;
mod deletion;
mod deployment;
mod migration;
mod mutation;
pub(crate) mod profile;
mod rename;
mod stale;
mod status;
