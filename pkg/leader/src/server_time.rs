//! Compares the apiserver's clock with ours, to detect that this machine was paused.
//!
//! A hypervisor that pauses a machine stops all of its clocks, `CLOCK_BOOTTIME` included. The
//! machine then believes that its Lease is still valid. The `Date` of the first response shows that
//! it is not.
//!
//! Architecture Invariant: pure. Times are arguments.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::elector::BootTime;

/// How long only a larger difference counts after one has been found. The clock of one of several
/// apiservers may be wrong, which must not block writes again and again.
const TOLERATED_FOR: Duration = Duration::from_mins(10);
/// By how much a difference must grow to count again. Dates are in whole seconds, and responses
/// take different times.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(5);

/// The apiserver's time at the last renewal, and what is known about its deviation.
#[derive(Debug)]
pub(crate) struct ServerTime {
    renew_deadline: Duration,
    renewal: Option<Renewal>,
    /// The last difference that was found, without the time that passed here, and until when it
    /// does not count again.
    tolerated: Option<(SignedDuration, BootTime)>,
}

#[derive(Clone, Copy, Debug)]
struct Renewal {
    date: Timestamp,
    began: BootTime,
}

impl ServerTime {
    pub(crate) fn new(renew_deadline: Duration) -> Self {
        Self {
            renew_deadline,
            renewal: None,
            tolerated: None,
        }
    }

    /// Records the `Date` of a renewal that started at `began`.
    pub(crate) fn renewed(&mut self, date: Timestamp, began: BootTime) {
        self.renewal = Some(Renewal { date, began });
    }

    /// Returns how much later than the last renewal a response is, if that is longer than the renew
    /// deadline: this machine was paused meanwhile, or the clocks of two apiservers differ.
    pub(crate) fn observe(&mut self, date: Timestamp, now: BootTime) -> Option<SignedDuration> {
        let renewal = self.renewal?;
        let difference = date.duration_since(renewal.date);
        // Dates are in whole seconds.
        if difference.as_secs_f64() <= self.renew_deadline.as_secs_f64().ceil() {
            return None;
        }
        let passed = SignedDuration::try_from(now.saturating_sub(renewal.began)).unwrap_or(SignedDuration::MAX);
        let unexplained = difference.saturating_sub(passed);
        let is_tolerated = self
            .tolerated
            .is_some_and(|(known, until)| now < until && unexplained <= known.saturating_add(TOLERANCE));
        if is_tolerated {
            return None;
        }
        self.tolerated = Some((unexplained, now + TOLERATED_FOR));
        Some(difference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: BootTime = Duration::from_secs(1000);

    fn date(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn after(seconds: u64) -> BootTime {
        BEGAN + Duration::from_secs(seconds)
    }

    fn renewed() -> ServerTime {
        let mut time = ServerTime::new(Duration::from_secs(10));
        time.renewed(date(0), BEGAN);
        time
    }

    fn seconds(time: &mut ServerTime, at: i64, now: BootTime) -> Option<i64> {
        time.observe(date(at), now).map(|difference| difference.as_secs())
    }

    #[test]
    fn only_a_date_after_the_renew_deadline_counts() {
        let mut time = renewed();
        assert_eq!(seconds(&mut time, -60, after(1)), None);
        assert_eq!(seconds(&mut time, 10, after(1)), None);
        assert_eq!(seconds(&mut time, 11, after(1)), Some(11));
        let mut short = ServerTime::new(Duration::from_millis(1500));
        short.renewed(date(0), BEGAN);
        assert_eq!(seconds(&mut short, 2, after(1)), None);
        assert_eq!(
            seconds(&mut ServerTime::new(Duration::from_secs(10)), 99, after(1)),
            None
        );
    }

    #[test]
    fn a_wrong_clock_counts_once_in_ten_minutes() {
        let mut time = renewed();
        // One of two apiservers is 60 s ahead.
        assert_eq!(seconds(&mut time, 61, after(1)), Some(61));
        for passed in [2, 5, 9] {
            let at = 60 + i64::try_from(passed).unwrap();
            assert_eq!(seconds(&mut time, at, after(passed)), None);
            assert_eq!(seconds(&mut time, at + 1, after(passed)), None, "a rounded date");
            // Each suspension ends with a renewal, whose date is rounded too.
            time.renewed(date(at - 60), after(passed));
            assert_eq!(seconds(&mut time, at + 2, after(passed)), None, "two rounded dates");
        }
        time.renewed(date(597), after(597));
        assert_eq!(seconds(&mut time, 660, after(600)), None);
        assert_eq!(seconds(&mut time, 661, after(601)), Some(64));
    }

    #[test]
    fn a_larger_difference_counts_at_once() {
        let mut time = renewed();
        assert_eq!(seconds(&mut time, 61, after(1)), Some(61));
        assert_eq!(seconds(&mut time, 75, after(2)), Some(75));
        // After a pause, the renewal shows the apiserver's new time.
        time.renewed(date(76), after(3));
        assert_eq!(seconds(&mut time, 78, after(5)), None);
        assert_eq!(seconds(&mut time, 200, after(5)), Some(124));
    }
}
