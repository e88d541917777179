//! Tests of the foo-controller on the shared control plane.

mod admission;
mod conflict;
mod deletion;
mod deployment;
mod migration;
mod mutation;
mod rename;
mod stale;
mod status;
