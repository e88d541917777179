//! The admission webhooks of controllers, served over HTTPS.
//!
//! Controllers declare webhooks as pure functions
//! ([`Descriptor::webhooks`](portreeve_reconcile::Descriptor::webhooks)). This crate reads the
//! apiserver's requests, calls the functions and writes the responses ([`Routes`]). The daemon
//! serves the routes on a port of their own, in every replica.
//!
//! This crate is the home of admission and of conversion between versions. Elsewhere are:
//!
//! - what a descriptor declares: `pkg/reconcile/src/admission.rs`;
//! - what needs the command line: the listener and the printed configurations, in
//!   `pkg/daemon/src/webhooks.rs` and `manifests/webhooks.rs`;
//! - validation without a server: `cmd/kubectl-portreeve/src/validate/webhooks.rs`;
//! - the conversion of CronTabs: `controllers/crontab/src/conversion.rs`;
//! - the probe of a definition's conversion, in the loop that follows the definition:
//!   `pkg/informer/src/reflect/conversion.rs`;
//! - serving a version and withdrawing it: `cmd/kubectl-portreeve/src/migration/conversion.rs`.
//!
//! # Decisions
//!
//! - An object is never decoded as a whole. It stays text, and a function decodes the fields that
//!   it reads, so no depth and no number of values is too much.
//! - The memory for a body is reserved before it is read, because bodies that wait for their last
//!   bytes would block each other.
//! - Reviews of one namespace are answered one after the other (`lanes.rs`), so a tenant's reviews
//!   delay nobody else's.
//! - A listener that stops waits up to 5 s for the first request of a new connection, because a
//!   client that has just connected does not repeat a call that fails.
//! - A defaulting webhook is called for new objects only: a default for an update would replace
//!   what somebody removes.
//!
//! Architecture Invariant: only `review.rs` knows `AdmissionReview`, and only `conversion.rs` knows
//! `ConversionReview`. Both are pure.
//! Architecture Invariant: a request has a time limit. The memory of all bodies and responses
//! together is bounded, and so is the number of those that are decoded at a time. Objects never
//! reach a log.

mod answer;
mod body;
mod conversion;
mod declared;
mod lanes;
mod metrics;
mod options;
mod patch;
mod review;
mod routes;
mod warnings;

pub use declared::{DeclarationError, declared};
pub use metrics::Metrics;
pub use options::Args;
pub use routes::{ParameterLister, Readiness, Routes};
