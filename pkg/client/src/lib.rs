//! The client stack that all components use to reach the apiserver.
//!
//! [`Connection::open`] turns [`Args`] into one connection pool. [`Connection::client`] returns a
//! [`kube::Client`] on that pool for each component. Every request passes the same middleware in
//! this order:
//!
//! 1. the rate limiter, when one is configured;
//! 2. the [`Fence`], for mutating requests;
//! 3. the time limit, which covers the body of a call but only the headers of a watch;
//! 4. the metrics, and the record of [`Outage`]s;
//! 5. for error responses, the conversion to a Status with the code and `Retry-After`.
//!
//! [`Connection::reload_credentials`] replaces the pool when the files of the credentials change.
//!
//! The middleware never logs bodies and never retries. Callers decide on retries by
//! [`ApiErrorKind`].
//!
//! `kube` itself logs bodies: `Client::request`, and so `Api`, logs the whole body of a response
//! that it cannot decode at WARN, and the text of error responses at DEBUG. The log setup must
//! therefore cap the target `kube_client` at `error`. Informers, which read objects in bulk, use
//! `Client::send`, which logs nothing.
//!
//! # Outages
//!
//! From the first failure with a 5xx or without a response until the next success, one task probes
//! `/readyz`. If the probes fail too, for at least a second, it is an outage. The first probe that
//! succeeds ends it and the waits that it has caused.
//!
//! - Only probes show an outage and its end, because other requests may fail for reasons of their
//!   own. An account that may not probe relies on its other requests.
//! - A 4xx neither begins nor ends an outage: an apiserver that starts answers 403 and 429 for a
//!   moment. The end of an outage does not end the waits after such responses.
//! - An outage that ends while a request is in flight also ends the wait after its failure.
//!
//! Architecture Invariant: no other code in Portreeve opens a connection to an apiserver.

mod api_error_kind;
mod body;
mod call;
mod config;
mod dial;
mod duration;
mod error_chain;
mod fence;
mod metadata_requests;
mod metrics;
mod outage;
mod rate;
mod refusal;
mod server_clock;
mod time_limit;

pub use api_error_kind::{
    ApiErrorKind, FENCED_BY_SERVER, is_object_not_found, is_timeout, is_unavailable, retry_after,
};
pub use config::authorities::Authorities;
pub use config::{Args, Connection, Error, InvalidQps, Settings, parse_qps};
pub use duration::{InvalidDuration, parse_duration};
pub use error_chain::error_chain;
pub use fence::{AlwaysOpen, Fence, Fenced, ReadOnly};
pub use metadata_requests::{
    InvalidObjectName, ListPage, METADATA, METADATA_LIST, NotAList, named_path, object_path, page_path,
};
pub use metrics::Metrics;
pub use outage::{Outage, OutageCount, readyz};
pub use refusal::refusal;
pub use server_clock::{ServerClock, date};
pub use time_limit::TimeLimit;
