//! Portreeve's HTTPS listener: the health endpoints, `/metrics`, and the routes of the daemon.
//!
//! This crate contains the flags ([`Args`]), the listener ([`Server`]), Kubernetes' `/livez`,
//! `/readyz` and `/healthz` for checks that the caller evaluates ([`HealthCheckers`], [`Check`]),
//! Prometheus' text format for a registry that the caller owns, and the paths that are open to
//! everybody ([`AllowedPaths`]). It does not define the checks, and it asks an [`AccessControl`]
//! who may see everything else.
//!
//! Client certificates are verified for each request and not in the handshake, because the trusted
//! CAs change while connections are open.
//!
//! Architecture Invariant: of our other crates, this one depends only on `portreeve_metrics`.
//! Checks, routes and access control are passed in as values.
//! Architecture Invariant: no process-wide state. The crypto provider is passed to rustls, and the
//! caller owns the registry.
//! Architecture Invariant: every task is joined before [`Server::serve`] returns, and every wait in
//! it has a limit.

mod access;
mod allowed_paths;
mod client_certificate;
mod client_stream;
mod connection;
mod endpoints;
mod health;
mod metrics;
mod options;
#[cfg(target_os = "linux")]
mod process;
mod reload;
mod server;
#[cfg(test)]
mod tests;
mod thread;
mod tls;
mod zpages;

pub use access::{AccessControl, AccessError, Decision, User};
pub use allowed_paths::{AllowedPaths, InvalidPath};
pub use endpoints::{HealthChecker, HealthCheckers, HttpEndpoints, Service};
pub use health::{Check, HealthStatus};
pub use metrics::Metrics;
pub use options::{Args, SecretArgs};
pub use server::{Error, PortLimits, Server};
pub use thread::ServerHandle;
pub use tls::{
    CertificateSink, CipherSuite, Error as CertificateError, FlagFile, InvalidNamedPair, NamedPair, PairError,
    TlsVersion, UnknownCipherSuite,
};
pub use zpages::ZPages;
