//! Summaries of measured times.

use std::{fmt, time::Duration};

use jiff::SignedDuration;

/// Measured times of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct DurationSummary(Vec<Duration>);

impl DurationSummary {
    pub(crate) fn of(times: impl IntoIterator<Item = SignedDuration>) -> Self {
        // Both ends are times of one clock, in order. A time that rounds to less than zero counts
        // as zero.
        let times = times
            .into_iter()
            .map(|time| Duration::try_from(time).unwrap_or_default());
        let mut times: Vec<_> = times.collect();
        times.sort_unstable();
        Self(times)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn median(&self) -> Duration {
        self.0.get(self.0.len() / 2).copied().unwrap_or_default()
    }

    pub(crate) fn max(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }
}

impl fmt::Display for DurationSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, max) = (self.median().as_millis(), self.max().as_millis());
        write!(f, "median {median} ms, max {max} ms of {}", self.0.len())
    }
}

#[test]
fn a_summary_shows_the_median_and_the_maximum() {
    let summary = DurationSummary::of([30, 10, -1, 20, 40].map(SignedDuration::from_millis));
    assert_eq!(summary.to_string(), "median 20 ms, max 40 ms of 5");
    assert_eq!(DurationSummary::default().to_string(), "median 0 ms, max 0 ms of 0");
}
