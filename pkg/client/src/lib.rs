//! The one way to the apiserver.
//!
//! [`Connection::open`] turns [`Args`] into one connection pool; [`Connection::client`] hands out a [`kube::Client`] on it for each
//! component. Every request passes the same stations, in this order: the rate limit (when one is set), the [`Fence`] (mutating
//! requests), the clock (a call has a time limit, body included; a watch only until its headers come), the metrics, and for refusals a
//! common form (a Status that carries the code and `Retry-After`). Bodies are never logged, nothing is retried here: who asked decides
//! that, by [`ApiErrorKind`].
//!
//! `kube` itself is not as quiet: `Client::request`, and so `Api`, logs the whole body of an answer that it cannot decode, at WARN, and
//! the text of refusals at DEBUG. Whoever sets up logs caps the target `kube_client` at `error`. What reads objects in bulk (informers)
//! uses `Client::send`, which logs nothing.
//!
//! Architecture Invariant: there is no other place in Portreeve that opens a connection to an apiserver.

mod api_error_kind;
mod body;
mod call;
mod config;
mod duration;
mod error_chain;
mod fence;
mod metrics;
mod rate;
mod refusal;

pub use api_error_kind::{ApiErrorKind, FENCED_BY_SERVER, is_object_not_found, retry_after};
pub use config::{Args, Connection, Error, Settings};
pub use duration::parse_duration;
pub use error_chain::error_chain;
pub use fence::{AlwaysOpen, Fence, Fenced, ReadOnly};
pub use metrics::Metrics;
pub use refusal::refusal;
