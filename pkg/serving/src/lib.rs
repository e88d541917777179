//! Portreeve's one HTTPS listener: the health endpoints, `/metrics`, and whatever routes the daemon adds.
//!
//! What is here: the flags ([`Args`]), the listener ([`Server`]), Kubernetes' `/livez`, `/readyz` and `/healthz` over
//! checks that the caller computes ([`HealthCheckers`], [`Check`]), Prometheus' text format over a registry that the caller
//! owns, and the rule which paths are open to everybody ([`AllowedPaths`]). What is not here: what the checks mean, and
//! delegated authentication and authorization; until those exist, a path that is not always allowed answers 401.
//!
//! Architecture Invariant: this crate knows none of our other crates; checks and routes come in as values.
//! Architecture Invariant: no process-wide state: the crypto provider is passed to rustls, the registry is the caller's.
//! Architecture Invariant: every task is joined before [`Server::serve`] returns, and every wait in it has a limit.

mod access;
mod connection;
mod endpoints;
mod health;
mod metrics;
mod options;
mod server;
#[cfg(test)]
mod tests;
mod thread;
mod tls;

pub use access::{AllowedPaths, InvalidPath};
pub use endpoints::{HealthChecker, HealthCheckers, HttpEndpoints};
pub use health::{Check, HealthStatus};
pub use options::Args;
pub use server::{Error, Server};
pub use thread::ServerHandle;
pub use tls::Error as CertificateError;
