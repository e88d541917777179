//! Delegated authentication and authorization of requests to the listener, as in Kubernetes'
//! components.
//!
//! [`DelegatedAccess`] authenticates a request by
//!
//! 1. the headers of a front proxy, which shows a certificate of the request-header CA,
//! 2. a client certificate,
//! 3. a bearer token, which the apiserver reviews.
//!
//! Without credentials, the user is `system:anonymous`. Credentials that are not accepted are an
//! error, even if the path is open to everybody. A `SubjectAccessReview` for verb and path
//! authorizes the user. Both kinds of reviews are cached. While the apiserver does not answer,
//! cached answers count until they expire, and everything else is an error.
//!
//! Reviews are sent from the thread that serves, over connections of their own, so a stuck worker
//! runtime and its rate limit do not affect them. Reasons of health checks are for readers of
//! `/metrics`; a request without credentials never causes a review of that right, so probes do not
//! depend on the apiserver. Without kubeconfigs of their own, the flags use the daemon's
//! connection.
//!
//! Architecture Invariant: nothing is allowed because of a failure.
//! Architecture Invariant: no token, key or certificate reaches an error or a log.

mod access_review;
mod bearer;
mod certificate_access;
mod client_certificate;
mod delegated;
mod expiring_cache;
mod lookup;
mod metrics;
mod options;
mod request_header;
mod review;
mod token_review;
mod trust;

pub use certificate_access::CertificateAccess;
pub use delegated::{DelegatedAccess, Error};
pub use metrics::Metrics;
pub use options::Args;
