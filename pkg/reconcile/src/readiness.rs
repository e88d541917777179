//! The checks that controllers add to `/readyz`.

use std::sync::Arc;

use portreeve_workqueue::{Key, Queue};

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

/// Returns the check `retries/NAME` of a work queue: a note while retries wait for the retry
/// budget. It never fails readiness, because the failures of one tenant must not stop the others.
pub fn held_retries_checker<K: Key>(name: &'static str, queue: Queue<K>) -> ReadinessChecker {
    Arc::new(move || {
        let state = match queue.observe().held {
            0 => ReadinessStatus::Ok,
            held => ReadinessStatus::Note(format!(
                "{held} failed items wait longer for a retry, because too many retries fail (--retry-qps); their conditions and events, \
                 and the log, show why"
            )),
        };
        vec![ReadinessCheck {
            name: format!("retries/{name}"),
            state,
        }]
    })
}
