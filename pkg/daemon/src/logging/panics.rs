//! Log lines about panics. A reconcile that panics is retried, and would log one for each retry.

use std::collections::HashMap;
use std::panic::set_hook;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two lines about panics at the same place.
const INTERVAL: Duration = Duration::from_mins(1);

/// Logs the panics of the process, those at a place that has panicked recently at debug.
pub(crate) fn log_panics() {
    let logged = Mutex::new(Places::default());
    set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let is_due = logged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_due(place, Instant::now());
        if is_due {
            tracing::error!(err = %panic, "panicked");
        } else {
            tracing::debug!(err = %panic, "panicked");
        }
    }));
}

/// When a panic was last logged for each place in the code.
#[derive(Default)]
struct Places(HashMap<String, Instant>);

impl Places {
    fn is_due(&mut self, place: String, now: Instant) -> bool {
        let last = self.0.get(&place);
        let is_due = last.is_none_or(|last| now.duration_since(*last) >= INTERVAL);
        if is_due {
            self.0.insert(place, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_logged_once_a_minute() {
        let (mut places, start) = (Places::default(), Instant::now());
        let mut is_due = |place: &str, seconds| places.is_due(place.to_owned(), start + Duration::from_secs(seconds));
        assert!(is_due("a.rs:1:1", 0) && is_due("a.rs:2:1", 0));
        assert!(!is_due("a.rs:1:1", 59));
        assert!(is_due("a.rs:1:1", 60) && !is_due("a.rs:1:1", 119) && is_due("a.rs:1:1", 120));
    }
}
