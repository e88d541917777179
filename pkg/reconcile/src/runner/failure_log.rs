//! Limits the log lines about an object that fails repeatedly.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use parking_lot::Mutex;
use portreeve_api::ObjectKey;
use tokio::time::Instant;

/// The time from the first line about an object to the second. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_mins(1);
/// The longest time between two lines about the same failure.
const LONGEST_WAIT: Duration = Duration::from_hours(1);
/// A failure with another cause waits for this part of the time.
const OTHER_CAUSE: u32 = 6;

/// What was logged about each object that fails.
///
/// Bounded by the currently failing keys: an entry is removed when its key succeeds or its object
/// is gone.
#[derive(Default)]
pub(super) struct FailureLog(Mutex<HashMap<ObjectKey, Failing>>);

struct Failing {
    /// A hash of the last failure that was logged.
    cause: u64,
    /// A hash of the last plan that was tried again.
    plan: Option<u64>,
    logged: Instant,
    wait: Duration,
    suppressed: u64,
}

/// A failure that is due to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// How many failures of the object were not logged since the last line, if any.
    pub(super) suppressed: Option<u64>,
}

impl FailureLog {
    /// Records a failure of an object at a time, and returns whether to log it.
    pub(super) fn record(&self, key: &ObjectKey, cause: &str, now: Instant) -> Option<Due> {
        let cause = hash(cause);
        let mut failing = self.0.lock();
        let mut entry = match failing.entry(key.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(Failing {
                    cause,
                    plan: None,
                    logged: now,
                    wait: FIRST_WAIT,
                    suppressed: 0,
                });
                return Some(Due { suppressed: None });
            }
            Entry::Occupied(entry) => entry,
        };
        let last = entry.get_mut();
        let wait = if last.cause == cause {
            last.wait
        } else {
            last.wait / OTHER_CAUSE
        };
        if now.duration_since(last.logged) < wait {
            last.suppressed += 1;
            return None;
        }
        let suppressed = Some(last.suppressed).filter(|count| *count > 0);
        *last = Failing {
            cause,
            plan: last.plan,
            logged: now,
            wait: (last.wait * 2).min(LONGEST_WAIT),
            suppressed: 0,
        };
        Some(Due { suppressed })
    }

    /// Records the plan for an object, and returns whether the last retry after a failure had the
    /// same plan.
    pub(super) fn is_repeated(&self, key: &ObjectKey, plan: &str) -> bool {
        let plan = Some(hash(plan));
        let mut failing = self.0.lock();
        let last = failing.get_mut(key).map(|last| std::mem::replace(&mut last.plan, plan));
        last == Some(plan)
    }

    /// Forgets an object that no longer fails.
    pub(super) fn clear(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::namespaced("n", name)
    }

    #[test]
    fn a_repeated_failure_is_logged_at_growing_distances() {
        let (log, start) = (FailureLog::default(), Instant::now());
        let mut lines = Vec::new();
        for seconds in (0..6 * 3600).step_by(30) {
            let now = start + Duration::from_secs(seconds);
            if let Some(due) = log.record(&key("a"), "forbidden", now) {
                lines.push((seconds / 60, due.suppressed.unwrap_or_default()));
            }
        }
        let expected = [
            (0, 0),
            (1, 1),
            (3, 3),
            (7, 7),
            (15, 15),
            (31, 31),
            (63, 63),
            (123, 119),
            (183, 119),
            (243, 119),
            (303, 119),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn another_cause_is_logged_sooner_but_not_without_limit() {
        let (log, start) = (FailureLog::default(), Instant::now());
        let record = |cause, seconds| {
            let due = log.record(&key("a"), cause, start + Duration::from_secs(seconds));
            due.map(|due| due.suppressed.unwrap_or_default())
        };
        assert_eq!(record("forbidden", 0), Some(0));
        assert_eq!(record("invalid", 9), None);
        assert_eq!(record("invalid", 10), Some(1));
        assert_eq!(record("invalid", 100), None);
        assert_eq!(record("forbidden", 100), Some(1));
        // Causes that alternate every second.
        let mut lines = 0;
        for seconds in 101..3701 {
            let cause = if seconds % 2 == 0 { "even" } else { "odd" };
            lines += usize::from(record(cause, seconds).is_some());
        }
        assert_eq!(lines, 8);
    }

    #[test]
    fn a_plan_is_repeated_from_its_second_retry_on() {
        let (log, now) = (FailureLog::default(), Instant::now());
        assert!(!log.is_repeated(&key("a"), "create"));
        log.record(&key("a"), "forbidden", now);
        assert!(!log.is_repeated(&key("a"), "create"));
        assert!(log.is_repeated(&key("a"), "create"));
        assert!(!log.is_repeated(&key("a"), "delete"));
        assert!(log.is_repeated(&key("a"), "delete") && !log.is_repeated(&key("b"), "delete"));
        log.clear(&key("a"));
        assert!(!log.is_repeated(&key("a"), "delete"));
    }

    #[test]
    fn objects_are_independent_and_a_success_is_a_new_start() {
        let (log, now) = (FailureLog::default(), Instant::now());
        for name in ["a", "b"] {
            assert_eq!(log.record(&key(name), "forbidden", now), Some(Due { suppressed: None }));
            assert_eq!(log.record(&key(name), "forbidden", now), None);
        }
        log.clear(&key("a"));
        assert_eq!(log.record(&key("a"), "forbidden", now), Some(Due { suppressed: None }));
        assert_eq!(log.record(&key("b"), "forbidden", now), None);
    }
}
