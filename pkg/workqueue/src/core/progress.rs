//! Measures whether a queue makes progress, which distinguishes a busy queue from a stuck one.
//!
//! Neither a long queue nor a key that has waited for long is a problem: the load may be high, or
//! other keys may take precedence. The queue is stuck if a run reports no progress, or if keys are
//! due while no key is taken or finished and no run reports progress.
//!
//! Architecture Invariant: memory is bounded by the current runs.

use std::{collections::BTreeMap, hash::Hash, time::Duration};

use tokio::time::Instant;

use super::{Core, item::State, ready_queue::Ticket};

/// The progress of a queue at one time, for health checks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Progress<K> {
    /// The number of keys that can be taken now.
    pub ready: usize,
    /// How long the key at the head of a lane has been due; the longer time of both lanes. `None`
    /// if no key is ready.
    pub oldest_ready: Option<Duration>,
    /// How long ago a key was last taken or finished, or a run reported progress. `None` before the
    /// first time.
    pub since_progress: Option<Duration>,
    /// The current run that has gone longest without progress, and for how long. `None` if nothing
    /// runs.
    pub longest_stalled: Option<(K, Duration)>,
}

/// When the queue last made progress.
#[derive(Debug, Default)]
pub(super) struct ProgressTracker {
    last: Option<Instant>,
    /// The last progress report of each run that has made one.
    steps: BTreeMap<Ticket, Instant>,
}

impl ProgressTracker {
    /// Records that a run started.
    pub(super) fn taken(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Records that a run ended.
    pub(super) fn done(&mut self, run: Ticket, now: Instant) {
        self.last = Some(now);
        self.steps.remove(&run);
    }

    fn report_progress(&mut self, run: Ticket, now: Instant) {
        self.last = Some(now);
        self.steps.insert(run, now);
    }
}

impl<K: Clone + Eq + Hash> Core<K> {
    /// Records progress of the key's run. Has no effect if the key is not running.
    pub(crate) fn report_progress(&mut self, key: &K, now: Instant) {
        if let Some(item) = self.items.get(key)
            && matches!(item.state, State::Running { .. })
        {
            self.tracker.report_progress(item.ticket, now);
        }
    }

    /// Returns the progress of the queue. Linear in the number of running keys.
    pub(crate) fn progress(&mut self, now: Instant) -> Progress<K> {
        let snapshot = self.observe(now);
        let age = |at: Instant| now.saturating_duration_since(at);
        let runs = self.running.iter().filter_map(|(ticket, key)| {
            let started = self.items.get(key)?.at;
            Some((key, *self.tracker.steps.get(ticket).unwrap_or(&started)))
        });
        let longest_stalled = runs.min_by_key(|(_, last_progress)| *last_progress);
        Progress {
            ready: snapshot.ready,
            oldest_ready: snapshot.oldest_ready,
            since_progress: self.tracker.last.map(age),
            longest_stalled: longest_stalled.map(|(key, last_progress)| (key.clone(), age(last_progress))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Backoff, Lane, Outcome, RetryBudget, Take};
    use super::*;

    /// A queue whose times are given in seconds after its start.
    struct Fixture {
        core: Core<&'static str>,
        start: Instant,
    }

    /// `ready`, then in seconds `oldest_ready`, `since_progress`, and `longest_stalled`.
    type Ages = (usize, Option<u64>, Option<u64>, Option<(&'static str, u64)>);

    impl Fixture {
        fn new() -> Self {
            Self {
                core: Core::new(Backoff::DEFAULT, RetryBudget::default(), |_| 0),
                start: Instant::now(),
            }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        fn add(&mut self, second: u64, key: &'static str, lane: Lane) {
            let now = self.at(second);
            self.core.add(key, lane, now);
        }

        fn take(&mut self, second: u64, key: &'static str) {
            let now = self.at(second);
            assert!(matches!(self.core.take(now), Take::Run(run) if run.key == key));
        }

        fn done(&mut self, second: u64, key: &'static str, outcome: Outcome) {
            let now = self.at(second);
            assert!(self.core.done(&key, outcome, 0.0, now).is_some());
        }

        fn progress(&mut self, second: u64) -> Ages {
            let now = self.at(second);
            let progress = self.core.progress(now);
            (
                progress.ready,
                progress.oldest_ready.map(|age| age.as_secs()),
                progress.since_progress.map(|age| age.as_secs()),
                progress.longest_stalled.map(|(key, age)| (key, age.as_secs())),
            )
        }
    }

    #[test]
    fn an_unused_queue_reports_no_progress_and_no_stall() {
        assert_eq!(Fixture::new().progress(1000), (0, None, None, None));
    }

    #[test]
    fn an_untaken_key_ages_without_progress() {
        let mut fixture = Fixture::new();
        fixture.add(10, "a", Lane::Routine);
        assert_eq!(fixture.progress(40), (1, Some(30), None, None));
        fixture.take(50, "a");
        assert_eq!(fixture.progress(60), (0, None, Some(10), Some(("a", 10))));
        fixture.done(70, "a", Outcome::Forget);
        fixture.add(1000, "b", Lane::Urgent);
        assert_eq!(fixture.progress(1001), (1, Some(1), Some(931), None));
    }

    #[test]
    fn a_passed_over_key_ages_while_other_keys_progress() {
        let mut fixture = Fixture::new();
        fixture.add(0, "routine", Lane::Routine);
        for second in [100, 200, 300] {
            fixture.add(second, "urgent", Lane::Urgent);
            fixture.take(second, "urgent");
            assert_eq!(
                fixture.progress(second + 9),
                (1, Some(second + 9), Some(9), Some(("urgent", 9)))
            );
            fixture.done(second + 10, "urgent", Outcome::Forget);
        }
    }

    #[test]
    fn a_delayed_key_does_not_age() {
        let mut fixture = Fixture::new();
        let later = fixture.at(1000);
        fixture.core.add_at("timed", later, Lane::Urgent, fixture.start);
        fixture.add(0, "failing", Lane::Urgent);
        fixture.take(0, "failing");
        fixture.done(0, "failing", Outcome::RetryAfter(Duration::from_mins(15)));
        assert_eq!(fixture.progress(899), (0, None, Some(899), None));
        // A key whose time has come counts as ready, even if no taker was woken for it.
        assert_eq!(fixture.progress(1001), (2, Some(101), Some(1001), None));
    }

    #[test]
    fn a_held_retry_does_not_age() {
        let mut fixture = Fixture::new();
        fixture.core = Core::new(Backoff::DEFAULT, RetryBudget::new(0.001, 1), |_| 0);
        for key in ["a", "b"] {
            fixture.add(0, key, Lane::Urgent);
            fixture.take(0, key);
            fixture.done(0, key, Outcome::Retry);
        }
        fixture.take(1, "a");
        fixture.done(1, "a", Outcome::Retry);
        assert_eq!(fixture.progress(900), (0, None, Some(899), None));
        assert_eq!(fixture.core.observe(fixture.at(900)).held, 2);
    }

    #[test]
    fn the_run_without_progress_for_longest_is_reported() {
        let mut fixture = Fixture::new();
        fixture.add(0, "a", Lane::Urgent);
        fixture.add(0, "b", Lane::Urgent);
        fixture.take(0, "a");
        fixture.take(1, "b");
        let now = fixture.at(50);
        fixture.core.report_progress(&"a", now);
        assert_eq!(fixture.progress(60), (0, None, Some(10), Some(("b", 59))));
        fixture.done(60, "b", Outcome::Forget);
        assert_eq!(fixture.progress(60), (0, None, Some(0), Some(("a", 10))));
    }

    #[test]
    fn only_running_keys_record_progress_and_only_until_they_end() {
        let mut fixture = Fixture::new();
        let now = fixture.at(0);
        fixture.core.report_progress(&"a", now);
        fixture.add(0, "a", Lane::Urgent);
        fixture.core.report_progress(&"a", now);
        assert_eq!(fixture.progress(5), (1, Some(5), None, None));
        fixture.take(5, "a");
        let now = fixture.at(6);
        fixture.core.report_progress(&"a", now);
        assert_eq!(fixture.core.tracker.steps.len(), 1);
        fixture.done(7, "a", Outcome::Forget);
        assert!(fixture.core.tracker.steps.is_empty());
    }
}
