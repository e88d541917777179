//! The fields that all log lines of one reconcile have.

use std::fmt::Display;

use tracing::Span;
use uuid::Builder;

/// Returns the span of a reconcile: its controller, the object as `namespace/name`, and a random
/// ID. Their names are those of controller-runtime.
///
/// [`KeyedController`](crate::KeyedController) does this itself.
pub fn reconcile_span(controller: &'static str, object: impl Display) -> Span {
    let id = Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid();
    tracing::info_span!("reconcile", controller, %object, reconcileID = %id)
}
