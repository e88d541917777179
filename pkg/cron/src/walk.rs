//! Steps through time exactly as robfig/cron does. These steps determine which runs are skipped and
//! which happen twice when the clock changes. Steps of months and days are on the calendar, steps
//! of hours and minutes in real time. Smaller fields are reset only before the first step.

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, DateTime, Time},
    tz::{Offset, TimeZone},
};

use crate::fields::{Fields, lowest};

/// The number of years that a search covers, as in robfig/cron.
pub(crate) const HORIZON: i16 = 5;

/// A search that steps through months, days, hours, minutes and seconds, at its current time.
///
/// Steps without a match are combined into one while the clock does not change, because then their
/// order does not matter.
pub(crate) struct Walk<'a> {
    fields: &'a Fields,
    zone: &'a TimeZone,
    at: Timestamp,
    civil: DateTime,
    last_year: i16,
    /// Whether a field was stepped. The smaller fields were reset before that step.
    stepped: bool,
    /// The next change of the clock and the local time at which it happens. It is looked up again
    /// once it is not later than `at`.
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

    /// Returns the next run; `None` if there is none within the horizon or the range of
    /// `Timestamp`.
    pub(crate) fn run(mut self) -> Option<Timestamp> {
        while self.civil.year() <= self.last_year {
            // Each stage advances its field to a value that matches. It returns false if that
            // changed a larger field, which must be checked again.
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
            let max_steps = match today.day() {
                1 => 12 * i32::from(change.year() - today.year()) + i32::from(change.month() - today.month()),
                _ => 1,
            };
            let months = today.month() - 1 + steps(self.fields.months, today.month(), 13, max_steps);
            let first = Date::new(today.year() + i16::from(months / 12), months % 12 + 1, 1).ok()?;
            // As in Go, a day past the end of its month is a day of the next month.
            let date = add_days(first, today.day() - 1)?;
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
            let (before, today, time) = (self.at, self.civil.date(), self.civil.time());
            let change = self.change().date();
            let max_steps = match time {
                _ if time != Time::midnight() => 1,
                _ if change.first_of_month() == today.first_of_month() => change.day() - today.day() - 1,
                _ => i8::MAX,
            };
            let days = steps(
                self.fields.days(today),
                today.day(),
                today.days_in_month() + 1,
                max_steps.into(),
            );
            self.go_to(add_days(today, days)?.to_datetime(time))?;
            // If a change of the clock moved the result off midnight, correct it as robfig/cron
            // does: forward from an hour after noon, and otherwise back.
            match self.civil.hour() {
                0 => {}
                hour @ 13.. => self.pass(SignedDuration::from_hours(i64::from(24 - hour)))?,
                hour => self.pass(SignedDuration::from_hours(i64::from(-hour)))?,
            }
            if self.at <= before {
                // The zone skipped a whole day. robfig/cron loops for ever here.
                self.go_to(add_days(today, 2)?.to_datetime(time))?;
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
            let max_steps = if change.date() == civil.date() {
                change.hour() - civil.hour()
            } else {
                i8::MAX
            };
            let hours = steps(self.fields.hours, civil.hour(), 24, max_steps.into());
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
            let max_steps = if change.date() == civil.date() && change.hour() == civil.hour() {
                change.minute() - civil.minute()
            } else {
                i8::MAX
            };
            let minutes = steps(self.fields.minutes, civil.minute(), 60, max_steps.into());
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

    /// Returns the local time, by the current offset, of the next change of the clock.
    fn change(&mut self) -> DateTime {
        if self.change.0 <= self.at {
            let change = self.zone.following(self.at).next().map(|change| change.timestamp());
            let with_local = |at| (at, self.zone.to_offset(self.at).to_datetime(at));
            self.change = change.map_or((Timestamp::MAX, DateTime::MAX), with_local);
        }
        self.change.1
    }

    /// Lets real time pass.
    fn pass(&mut self, duration: SignedDuration) -> Option<()> {
        self.set_time(self.at.checked_add(duration).ok()?);
        Some(())
    }

    /// Goes to a local time as Go's `time.Date` does. It first takes the local time as UTC and uses
    /// the offset at that time. If another offset applies at the result, it uses that offset.
    fn go_to(&mut self, civil: DateTime) -> Option<()> {
        let first = self.zone.to_offset(Offset::UTC.to_timestamp(civil).ok()?);
        let second = self.zone.to_offset(first.to_timestamp(civil).ok()?);
        self.set_time(second.to_timestamp(civil).ok()?);
        Some(())
    }

    fn set_time(&mut self, at: Timestamp) {
        if at < self.at {
            self.change = (Timestamp::MIN, DateTime::MIN);
        }
        self.at = at;
        self.civil = self.zone.to_datetime(at);
    }
}

/// Returns how many steps lead from `value` to the next value of a set, or to `end`. The result is
/// limited to `max_steps`, but is at least one.
fn steps(set: u64, value: i8, end: i8, max_steps: i32) -> i8 {
    let later = set >> value >> 1;
    let needed = if later == 0 { end - value } else { lowest(later) + 1 };
    needed.min(i8::try_from(max_steps).unwrap_or(i8::MAX)).max(1)
}

fn add_days(date: Date, days: i8) -> Option<Date> {
    date.checked_add(SignedDuration::from_hours(24 * i64::from(days))).ok()
}
