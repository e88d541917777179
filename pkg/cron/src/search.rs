//! Computes the next and the latest run under Kubernetes' policy.
//!
//! Between changes of the clock this is a search on the calendar ([`Fields::first_from`]). Across a
//! change, the result depends on how robfig/cron steps through time, most visibly in zones that
//! change by half an hour or at midnight. [`Walk`] reproduces those steps. The calendar is used
//! only where a walk would find the same run.

use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, Offset, TimeZone},
};

use crate::{
    every::second,
    fields::Fields,
    walk::{HORIZON, Walk},
};

/// The minimum distance that [`next`] searches: [`HORIZON`] without leap days.
pub(crate) const MIN_SEARCH_SPAN: SignedDuration = SignedDuration::from_hours(5 * 365 * 24);
/// The minimum time between two changes of the clock, and the maximum by which a clock goes back.
const DAY: SignedDuration = SignedDuration::from_hours(24);

pub(crate) fn next(fields: &Fields, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let start = Start::after(after, fields, zone)?;
    let from = if start.civil.second() == 0 {
        start.civil
    } else {
        next_minute(start.civil)?
    };
    let found = fields.first_from(from, start.civil.year() + HORIZON);
    if start.is_steady() && start.is_steady_until(found) {
        return start.instant(found?);
    }
    let mut at = start.at;
    loop {
        let found = Walk::begin(fields, at, zone).run()?;
        if found > after {
            return Some(found);
        }
        // The walk went back over a change of the clock and found an earlier run. robfig/cron would
        // return this run for ever.
        at = at.checked_add(SignedDuration::from_mins(1)).ok()?;
    }
}

/// Returns the last run up to `until` that repeated calls of [`next`] from `after` find. The time
/// between two changes of the clock takes one step. [`Walk`] steps across each change, because the
/// runs that a walk skips depend on its start.
pub(crate) fn latest(fields: &Fields, after: Timestamp, until: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let mut at = after;
    let mut latest = None;
    while at < until {
        let start = Start::after(at, fields, zone)?;
        if let Some(last) = start.last_before_change(fields, until) {
            latest = Some(last);
            at = last;
        }
        at = match next(fields, at, zone) {
            Some(next) if next > until => break,
            Some(next) => *latest.insert(next),
            None => match at.checked_add(MIN_SEARCH_SPAN) {
                Ok(searched) => searched,
                Err(_) => break,
            },
        };
    }
    latest
}

/// Returns the first whole minute after `civil`.
pub(crate) fn next_minute(civil: DateTime) -> Option<DateTime> {
    let date = civil.date();
    Some(match (civil.hour(), civil.minute()) {
        (23, 59) => date.tomorrow().ok()?.at(0, 0, 0, 0),
        (hour, 59) => date.at(hour + 1, 0, 0, 0),
        (hour, minute) => date.at(hour, minute + 1, 0, 0),
    })
}

/// The start of a search, at a whole second.
struct Start<'a> {
    zone: &'a TimeZone,
    at: Timestamp,
    offset: Offset,
    civil: DateTime,
    /// The local time to which a walk first goes back: the start of the month, day or hour,
    /// whichever is the first that does not match. `None` if all match.
    back: Option<DateTime>,
}

impl<'a> Start<'a> {
    fn after(after: Timestamp, fields: &Fields, zone: &'a TimeZone) -> Option<Self> {
        let at = Timestamp::from_second(second(after) + 1).ok()?;
        let offset = zone.to_offset(at);
        let civil = offset.to_datetime(at);
        let (date, hour) = (civil.date(), civil.hour());
        let back = if !fields.has_month(date.month()) {
            Some(date.first_of_month().at(0, 0, 0, 0))
        } else if !fields.has_day(date) {
            Some(date.at(0, 0, 0, 0))
        } else if !fields.has_hour(hour) {
            Some(date.at(hour, 0, 0, 0))
        } else {
            None
        };
        Some(Self {
            zone,
            at,
            offset,
            civil,
            back,
        })
    }

    /// Returns whether the clock does not change between one day before `back` and the start.
    fn is_steady(&self) -> bool {
        let Some(back) = self.back else { return true };
        let back = self.offset.to_timestamp(back).unwrap_or(Timestamp::MIN);
        let past = self.at.saturating_add(SignedDuration::from_secs(1)).unwrap_or(self.at);
        let change = self.zone.preceding(past).next();
        change.is_none_or(|change| back.duration_since(change.timestamp()) > DAY)
    }

    /// Returns whether the clock does not change between the start and `found`, or ever after the
    /// start if `found` is `None`.
    fn is_steady_until(&self, found: Option<DateTime>) -> bool {
        let Some(found) = found else {
            return self.zone.following(self.at).next().is_none();
        };
        let Some(at) = self.instant(found) else {
            return false;
        };
        let same = if self.steps_in_real_time_to(found) {
            self.zone.to_offset(at) == self.offset
        } else {
            let offset = self.offset;
            self.zone.to_ambiguous_timestamp(found).offset() == AmbiguousOffset::Unambiguous { offset }
        };
        let change = || self.zone.following(self.at).next();
        same && (at.duration_since(self.at) < DAY || change().is_none_or(|change| change.timestamp() > at))
    }

    /// Returns when the clock shows `civil`, if it does not change before then.
    fn instant(&self, civil: DateTime) -> Option<Timestamp> {
        if civil.date() != self.civil.date() {
            return self.offset.to_timestamp(civil).ok();
        }
        let seconds = |civil: DateTime| {
            let [hour, minute, second] = [civil.hour(), civil.minute(), civil.second()].map(i64::from);
            hour * 3_600 + minute * 60 + second
        };
        Timestamp::from_second(self.at.as_second() + seconds(civil) - seconds(self.civil)).ok()
    }

    /// Returns whether a walk to `found` steps only in real time. Such a walk finds the right one
    /// of two occurrences of a local time.
    fn steps_in_real_time_to(&self, found: DateTime) -> bool {
        self.back.is_none() && found.date() == self.civil.date()
    }

    /// Returns the last run up to `until` before the next change of the clock, if a search on the
    /// calendar can find it.
    fn last_before_change(&self, fields: &Fields, until: Timestamp) -> Option<Timestamp> {
        if !self.is_steady() {
            return None;
        }
        let mut last = until;
        if let Some(change) = self.zone.following(self.at).next() {
            let before = change.timestamp().checked_sub(SignedDuration::from_secs(1)).ok()?;
            last = last.min(before);
            if !self.steps_in_real_time_to(self.offset.to_datetime(last)) {
                // A walk must find runs at local times that occur twice.
                let repeated = self.offset.duration_since(change.offset()).max(SignedDuration::ZERO);
                last = last.min(before.checked_sub(repeated).ok()?);
            }
        }
        let run = fields.last_until(self.offset.to_datetime(last), self.civil)?;
        self.instant(run)
    }
}
