//! The one way to the apiserver.
//!
//! [`Connection::open`] turns [`Args`] into one connection pool; [`Connection::client`] hands out a [`kube::Client`] on it for each
//! component. Every request passes the same stations, in this order: the rate limit (when one is set), the [`Fence`] (mutating
//! requests), the clock (a call has a time limit, body included; a watch only until its headers come), the metrics, and for refusals a
//! common form (a Status that carries the code and `Retry-After`). Bodies are never logged, nothing is retried here: who asked decides
//! that, by [`Answer`].
//!
//! `kube` itself is not as quiet: `Client::request`, and so `Api`, logs the whole body of an answer that it cannot decode, at WARN, and
//! the text of refusals at DEBUG. Whoever sets up logs caps the target `kube_client` at `error`. What reads objects in bulk (informers)
//! uses `Client::send`, which logs nothing.
//!
//! Architecture Invariant: there is no other place in Portreeve that opens a connection to an apiserver.

mod answer;
mod body;
mod call;
mod chain;
mod config;
mod duration;
mod fence;
mod metrics;
mod rate;
mod refusal;

pub use answer::{Answer, FENCED_BY_SERVER, is_gone, retry_after};
pub use chain::chain;
pub use config::{Args, Connection, Error, Settings};
pub use duration::duration;
pub use fence::{Fence, Fenced, Open, ReadOnly};
pub use metrics::Metrics;
pub use refusal::refusal;
