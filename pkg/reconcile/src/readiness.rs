//! The checks that controllers add to `/readyz`.

use std::sync::Arc;

/// One line that a controller adds to `/readyz`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReadinessCheck {
    /// The name of the check: letters, digits, `-`, `.`, `_` and `/`.
    pub name: String,
    /// The result of the check.
    pub state: ReadinessStatus,
}

/// How a check affects readiness.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadinessStatus {
    /// Passes without a remark.
    Ok,
    /// Passes with a remark for the reader.
    Note(String),
    /// Fails readiness.
    Failed(String),
}

/// Runs a controller's readiness checks. It is called for each request, on the health thread, so
/// it must not block or compute for long.
pub type ReadinessChecker = Arc<dyn Fn() -> Vec<ReadinessCheck> + Send + Sync>;
