//! Measures for how long a runtime has run no task.
//!
//! Architecture Invariant: pure. Times are arguments.

use std::time::Duration;

use tokio::time::Instant;

/// The most that one observation adds: two seconds, twice the interval of the observations.
const MAX_STEP: Duration = Duration::from_secs(2);

/// Adds up the time in which the heartbeat of a runtime did not change.
///
/// A process that was stopped, or that got no CPU time, finds an old heartbeat although its runtime
/// is not stuck. So only the time in which the observer itself ran counts: the time between two
/// observations counts at most [`MAX_STEP`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StallMeter {
    beat: Option<Instant>,
    observed_at: Instant,
    stalled: Duration,
}

impl StallMeter {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            beat: None,
            observed_at: now,
            stalled: Duration::ZERO,
        }
    }

    /// Observes the last heartbeat, `None` while nothing beats. Returns for how long the same
    /// heartbeat has been observed.
    pub(crate) fn observe(&mut self, beat: Option<Instant>, now: Instant) -> Duration {
        let step = now.saturating_duration_since(self.observed_at).min(MAX_STEP);
        self.observed_at = now;
        if beat.is_some() && beat == self.beat {
            self.stalled += step;
        } else {
            self.stalled = Duration::ZERO;
        }
        self.beat = beat;
        self.stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Observes heartbeats and returns the last stall. Each item is the time of the observation and
    /// of the last heartbeat, in seconds.
    fn stall(observations: &[(u64, Option<u64>)]) -> u64 {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut meter = StallMeter::new(start);
        let stalls = observations
            .iter()
            .map(|(now, beat)| meter.observe(beat.map(at), at(*now)));
        stalls.last().unwrap_or_default().as_secs()
    }

    #[test]
    fn a_stall_is_the_time_in_which_the_observer_ran_and_the_runtime_did_not() {
        let table: &[(&str, &[_], u64)] = &[
            ("beats", &[(1, Some(0)), (2, Some(1)), (3, Some(2))], 0),
            ("stuck", &[(1, Some(0)), (2, Some(0)), (3, Some(0)), (4, Some(0))], 3),
            ("recovered", &[(1, Some(0)), (2, Some(0)), (3, Some(3))], 0),
            (
                "stuck again",
                &[(1, Some(0)), (2, Some(0)), (3, Some(3)), (4, Some(3))],
                1,
            ),
            ("not started, or ended", &[(1, None), (9, None)], 0),
            ("ended after a stall", &[(1, Some(0)), (2, Some(0)), (3, None)], 0),
            // The process was stopped for an hour. Its runtime beats soon after it resumes.
            ("stopped", &[(1, Some(0)), (3_600, Some(0))], 2),
            ("resumed", &[(1, Some(0)), (3_600, Some(0)), (3_601, Some(3_600))], 0),
            ("resumed stuck", &[(1, Some(0)), (3_600, Some(0)), (3_601, Some(0))], 3),
        ];
        for (name, observations, expected) in table {
            assert_eq!(stall(observations), *expected, "{name}");
        }
    }
}
