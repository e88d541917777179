//! foo-controller: every promise that it makes, on the shared control plane.

mod admission;
mod conflict;
mod deletion;
mod deployment;
mod stale;
mod status;
