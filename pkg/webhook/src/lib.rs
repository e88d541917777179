//! The admission webhooks of controllers, served over HTTPS.
//!
//! Controllers declare webhooks as pure functions
//! ([`Descriptor::webhooks`](portreeve_reconcile::Descriptor::webhooks)). This crate reads the
//! apiserver's requests, calls the functions and writes the responses ([`Routes`]). The daemon
//! serves the routes on a port of their own, in every replica.
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
