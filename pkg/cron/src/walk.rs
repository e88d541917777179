//! Steps through time exactly as robfig/cron does. These steps determine which runs are skipped and
//! which happen twice when the clock changes. Months and days are stepped on the calendar, hours
//! and minutes in real time. Smaller fields are reset to zero only before the first step.

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, DateTime, Time},
    tz::{Offset, TimeZone},
};

use crate::{
    fields::{Fields, lowest},
    search::HORIZON,
};

/// A walk through the calendar and the day, at its current point in time.
///
/// Steps without a match are combined into one while the clock does not change, because then their
/// order does not matter.
pub(crate) struct Walk<'a> {
    fields: &'a Fields,
    zone: &'a TimeZone,
    at: Timestamp,
    civil: DateTime,
    last_year: i16,
    /// Whether a field was stepped, so that all smaller fields are already zero.
    stepped: bool,
    /// The next change of the clock and what the clock shows then. It has to be looked up again if
    /// it is not later than `at`.
    change: (Timestamp, DateTime),
}

impl<'a> Walk<'a> {
    pub(crate) fn begin(fields: &'a Fields, start: Timestamp, zone: &'a TimeZone) -> Self {
        let civil = zone.to_datetime(start);
        Self {
            fields,
            zone,
            at: start,
            civil,
            last_year: civil.year() + HORIZON,
            stepped: false,
            change: (Timestamp::MIN, DateTime::MIN),
        }
    }

    /// Returns the next run; `None` if there is none within the horizon or before the end of time.
    pub(crate) fn run(mut self) -> Option<Timestamp> {
        while self.civil.year() <= self.last_year {
            // Each stage returns whether its field matches. A stage returns false after it has
            // moved a larger field on.
            if self.month()? && self.day()? && self.hour()? && self.minute()? && self.second()? {
                return Some(self.at);
            }
        }
        None
    }

    fn month(&mut self) -> Option<bool> {
        while !self.fields.has_month(self.civil.month()) {
            if !std::mem::replace(&mut self.stepped, true) {
                self.go_to(self.civil.date().first_of_month().at(0, 0, 0, 0))?;
            }
            let (today, change) = (self.civil.date(), self.change().date());
            let steady = match today.day() {
                1 => 12 * i32::from(change.year() - today.year()) + i32::from(change.month() - today.month()),
                _ => 1,
            };
            let months = today.month() - 1 + steps(self.fields.months, today.month(), 13, steady);
            let first = Date::new(today.year() + i16::from(months / 12), months % 12 + 1, 1).ok()?;
            // As in Go, a day past the end of its month is a day of the next month.
            let date = later(first, today.day() - 1)?;
            self.go_to(date.to_datetime(self.civil.time()))?;
            if self.civil.month() == 1 {
                return Some(false);
            }
        }
        Some(true)
    }

    fn day(&mut self) -> Option<bool> {
        while !self.fields.has_day(self.civil.date()) {
            if !std::mem::replace(&mut self.stepped, true) {
                self.go_to(self.civil.date().at(0, 0, 0, 0))?;
            }
            let (was, today, time) = (self.at, self.civil.date(), self.civil.time());
            let change = self.change().date();
            let steady = match time {
                _ if time != Time::midnight() => 1,
                _ if change.first_of_month() == today.first_of_month() => change.day() - today.day() - 1,
                _ => i8::MAX,
            };
            let days = steps(
                self.fields.days(today),
                today.day(),
                today.days_in_month() + 1,
                steady.into(),
            );
            self.go_to(later(today, days)?.to_datetime(time))?;
            // The clock skipped midnight. As in robfig/cron, go forward from an hour after noon,
            // and back from an earlier one.
            match self.civil.hour() {
                0 => {}
                hour @ 13.. => self.pass(SignedDuration::from_hours(i64::from(24 - hour)))?,
                hour => self.pass(SignedDuration::from_hours(i64::from(-hour)))?,
            }
            if self.at <= was {
                // The zone skipped a whole day. robfig/cron loops for ever here.
                self.go_to(later(today, 2)?.to_datetime(time))?;
            }
            if self.civil.day() == 1 {
                return Some(false);
            }
        }
        Some(true)
    }

    fn hour(&mut self) -> Option<bool> {
        while !self.fields.has_hour(self.civil.hour()) {
            if !std::mem::replace(&mut self.stepped, true) {
                self.go_to(self.civil.date().at(self.civil.hour(), 0, 0, 0))?;
            }
            let (civil, change) = (self.civil, self.change());
            let steady = if change.date() == civil.date() {
                change.hour() - civil.hour()
            } else {
                i8::MAX
            };
            let hours = steps(self.fields.hours, civil.hour(), 24, steady.into());
            self.pass(SignedDuration::from_hours(hours.into()))?;
            if self.civil.hour() == 0 {
                return Some(false);
            }
        }
        Some(true)
    }

    fn minute(&mut self) -> Option<bool> {
        while !self.fields.has_minute(self.civil.minute()) {
            if !std::mem::replace(&mut self.stepped, true) {
                self.pass(SignedDuration::from_secs(-i64::from(self.civil.second())))?;
            }
            let (civil, change) = (self.civil, self.change());
            let steady = if change.date() == civil.date() && change.hour() == civil.hour() {
                change.minute() - civil.minute()
            } else {
                i8::MAX
            };
            let minutes = steps(self.fields.minutes, civil.minute(), 60, steady.into());
            self.pass(SignedDuration::from_mins(minutes.into()))?;
            if self.civil.minute() == 0 {
                return Some(false);
            }
        }
        Some(true)
    }

    fn second(&mut self) -> Option<bool> {
        let second = self.civil.second();
        if second == 0 {
            return Some(true);
        }
        self.stepped = true;
        self.pass(SignedDuration::from_secs(i64::from(60 - second)))?;
        Some(false)
    }

    /// Returns what the clock shows when it next changes.
    fn change(&mut self) -> DateTime {
        if self.change.0 <= self.at {
            let change = self.zone.following(self.at).next().map(|change| change.timestamp());
            let shown = |at| (at, self.zone.to_offset(self.at).to_datetime(at));
            self.change = change.map_or((Timestamp::MAX, DateTime::MAX), shown);
        }
        self.change.1
    }

    /// Lets real time pass.
    fn pass(&mut self, duration: SignedDuration) -> Option<()> {
        self.arrive(self.at.checked_add(duration).ok()?);
        Some(())
    }

    /// Goes to a time on the calendar as Go's time.Date does: it first uses the offset that would
    /// hold if the time were UTC. If another offset holds at the result, it uses that one.
    fn go_to(&mut self, civil: DateTime) -> Option<()> {
        let first = self.zone.to_offset(Offset::UTC.to_timestamp(civil).ok()?);
        let second = self.zone.to_offset(first.to_timestamp(civil).ok()?);
        self.arrive(second.to_timestamp(civil).ok()?);
        Some(())
    }

    fn arrive(&mut self, at: Timestamp) {
        if at < self.at {
            self.change = (Timestamp::MIN, DateTime::MIN);
        }
        self.at = at;
        self.civil = self.zone.to_datetime(at);
    }
}

/// Returns how many steps lead from `value` to the next value of a set, or to `end`. The result is
/// at least one and otherwise at most `steady`.
fn steps(set: u64, value: i8, end: i8, steady: i32) -> i8 {
    let later = set >> value >> 1;
    let wanted = if later == 0 { end - value } else { lowest(later) + 1 };
    wanted.min(i8::try_from(steady).unwrap_or(i8::MAX)).max(1)
}

fn later(date: Date, days: i8) -> Option<Date> {
    date.checked_add(SignedDuration::from_hours(24 * i64::from(days))).ok()
}
