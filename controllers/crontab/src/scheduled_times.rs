//! Computes which scheduled times are due, expired or next.
//!
//! Architecture Invariant: pure. The time is an argument.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use portreeve_cron::{DstPolicy, Schedule};

/// The maximum number of missed runs that are counted one by one.
const MAX_COUNTED: u32 = 1_000;

/// A schedule with everything that determines its times.
#[derive(Debug)]
pub(crate) struct Timetable {
    /// The text of the schedule.
    pub(crate) text: String,
    pub(crate) schedule: Schedule,
    pub(crate) zone: TimeZone,
    pub(crate) policy: DstPolicy,
    /// The maximum delay with which a run may start.
    pub(crate) deadline: Option<SignedDuration>,
}

/// The scheduled times around now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct ScheduledTimes {
    /// The latest past time, if a run may still start for it. As in kube-controller-manager, no run
    /// starts for earlier times.
    pub(crate) due: Option<Timestamp>,
    /// When the deadline of `due` ends.
    pub(crate) until: Option<Timestamp>,
    /// The latest past time for which no run may start any more.
    pub(crate) expired: Option<Timestamp>,
    /// The first time in the future; `None` if there is none within five years.
    pub(crate) next: Option<Timestamp>,
}

impl Timetable {
    /// Returns the scheduled times around `now` that are later than `base`, for example the time of
    /// the last run. If the clock was set back, `base` may be later than `now`; then nothing is
    /// due.
    pub(crate) fn times(&self, base: Timestamp, now: Timestamp) -> ScheduledTimes {
        let latest = self.latest(base, now);
        let (due, expired) = match latest {
            Some(slot) if self.can_start(slot, now) => (Some(slot), self.latest(base, before(slot))),
            expired => (None, expired),
        };
        ScheduledTimes {
            due,
            until: due.and_then(|slot| self.deadline_end(slot)),
            expired,
            next: self.schedule.next(latest.unwrap_or(base), &self.zone, self.policy),
        }
    }

    /// Counts the times after `base` and up to `until`, up to one more than [`MAX_COUNTED`].
    pub(crate) fn count(&self, base: Timestamp, until: Timestamp) -> u32 {
        self.count_without(0, base, until)
    }

    /// Like [`Self::count`], but does not count this many of the times.
    pub(crate) fn count_without(&self, started: u32, base: Timestamp, until: Timestamp) -> u32 {
        let most = started.saturating_add(MAX_COUNTED + 1);
        let all = self.schedule.count(base, until, &self.zone, self.policy, most);
        all.saturating_sub(started)
    }

    /// Counts the times after `base` whose deadlines have not ended. kube-controller-manager counts
    /// these as missed.
    pub(crate) fn count_startable(&self, base: Timestamp, now: Timestamp) -> u32 {
        let expired_until = self.deadline.and_then(|deadline| now.checked_sub(deadline).ok());
        let last_expired = expired_until.and_then(|until| self.latest(base, until));
        self.count(last_expired.unwrap_or(base), now)
    }

    /// Returns the latest time after `base` and up to `until`.
    pub(crate) fn latest(&self, base: Timestamp, until: Timestamp) -> Option<Timestamp> {
        self.schedule.latest(base, until, &self.zone, self.policy)
    }

    fn can_start(&self, slot: Timestamp, now: Timestamp) -> bool {
        self.deadline_end(slot).is_none_or(|end| now < end)
    }

    fn deadline_end(&self, slot: Timestamp) -> Option<Timestamp> {
        self.deadline.and_then(|deadline| slot.checked_add(deadline).ok())
    }
}

/// Loads a time zone. The default is UTC and not the local zone, because all replicas must agree.
///
/// # Errors
///
/// Returns an error when the name is not a time zone.
pub(crate) fn load_zone(name: Option<&str>) -> Result<TimeZone, portreeve_cron::Error> {
    name.map_or(Ok(TimeZone::UTC), portreeve_cron::load_zone)
}

/// Returns the second before `slot`. Scheduled times are whole seconds.
pub(crate) fn before(slot: Timestamp) -> Timestamp {
    slot.checked_sub(SignedDuration::from_secs(1)).unwrap_or(slot)
}

#[cfg(test)]
mod tests {
    use portreeve_cron::Dialect;

    use super::*;

    fn at(text: &str) -> Timestamp {
        let whole = if text.len() == 5 {
            format!("2026-03-10T{text}:00Z")
        } else {
            text.to_owned()
        };
        whole.parse().expect("the text is a time")
    }

    fn timetable(text: &str, deadline: Option<i64>) -> Timetable {
        Timetable {
            text: text.to_owned(),
            schedule: Schedule::parse(text, Dialect::Kubernetes).expect("the text is a schedule"),
            zone: TimeZone::UTC,
            policy: DstPolicy::Kubernetes,
            deadline: deadline.map(SignedDuration::from_secs),
        }
    }

    #[test]
    fn latest_past_time_is_due_until_its_deadline() {
        // Columns: schedule | deadline, last run, now | due, until, expired, next.
        let table = "
            0 * * * *   | - 09:00 09:59                     | - - - 10:00
            0 * * * *   | - 09:00 10:00                     | 10:00 - - 11:00
            0 * * * *   | - 09:00 12:30                     | 12:00 - 11:00 13:00
            0 * * * *   | 60 09:00 10:00                    | 10:00 10:01 - 11:00
            0 * * * *   | 60 09:00 2026-03-10T10:00:59.999Z | 10:00 10:01 - 11:00
            0 * * * *   | 60 09:00 10:01                    | - - 10:00 11:00
            0 * * * *   | 0 09:00 10:00                     | - - 10:00 11:00
            0 * * * *   | 7200 09:00 12:30                  | 12:00 14:00 11:00 13:00
            0 * * * *   | - 12:00 10:30                     | - - - 13:00
            0 * * * *   | 9223372036854775807 09:00 10:00   | 10:00 - - 11:00
            @every 90m  | - 09:07 12:08                     | 12:07 - 10:37 13:37
            0 0 31 2 *  | - 09:00 10:00                     | - - - -
        ";
        let rows: Vec<_> = table.lines().filter(|row| !row.trim().is_empty()).collect();
        assert_eq!(rows.len(), 12);
        for row in rows {
            let cells: Vec<Vec<_>> = row.split('|').map(|cell| cell.split_whitespace().collect()).collect();
            let [text, given, expected] = &cells[..] else {
                panic!("the row must have three columns: {row}");
            };
            let times: Vec<_> = expected.iter().map(|time| (*time != "-").then(|| at(time))).collect();
            let expected = ScheduledTimes {
                due: times[0],
                until: times[1],
                expired: times[2],
                next: times[3],
            };
            let timetable = timetable(&text.join(" "), given[0].parse().ok());
            assert_eq!(timetable.times(at(given[1]), at(given[2])), expected, "{row}");
        }
    }

    #[test]
    fn the_limit_of_a_count_does_not_depend_on_the_times_that_do_not_count() {
        let minutely = timetable("* * * * *", None);
        for (started, until, expected) in [(0, "10:00", 60), (20, "10:00", 40), (900, "2026-03-11T05:00:00Z", 300)] {
            let count = minutely.count_without(started, at("09:00"), at(until));
            assert_eq!(count, expected, "{started} until {until}");
        }
        assert_eq!(
            minutely.count_without(900, at("09:00"), at("2026-04-01T00:00:00Z")),
            MAX_COUNTED + 1
        );
    }

    #[test]
    fn count_startable_excludes_times_past_the_deadline() {
        let count = |text: &str, deadline: Option<i64>, base: &str, now: &str| {
            timetable(text, deadline).count_startable(at(base), at(now))
        };
        assert_eq!(count("* * * * *", None, "09:00", "09:00"), 0);
        assert_eq!(count("* * * * *", None, "09:00", "10:00"), 60);
        assert_eq!(count("* * * * *", Some(600), "09:00", "10:00"), 10);
        assert_eq!(count("* * * * *", Some(86_400), "09:00", "10:00"), 60);
        // There are more expired times than `MAX_COUNTED`.
        assert_eq!(count("* * * * *", Some(12_000), "2026-01-01T00:00:00Z", "10:00"), 200);
        // The times of `@every` count from the last run, not from the deadline.
        assert_eq!(count("@every 20m", Some(600), "09:00", "10:00"), 1);
        assert_eq!(
            count("* * * * *", None, "2026-01-01T00:00:00Z", "10:00"),
            MAX_COUNTED + 1
        );
    }
}
