//! The next run in Kubernetes' sense.
//!
//! Between changes of the clock this is a search on the calendar. Across them robfig/cron's way of walking decides what is skipped
//! and what happens twice: months and days are stepped on the calendar, hours and minutes in real time, and fields below a step
//! start at zero only if nothing was stepped before. A zone that moves by half an hour makes that visible, so the walk is kept.

use jiff::{
    SignedDuration, Span, Timestamp,
    civil::DateTime,
    tz::{Offset, TimeZone},
};

use crate::fields::Fields;

/// How many years are searched, as in robfig/cron.
pub(crate) const HORIZON: i16 = 5;
/// Clocks do not change twice within a day.
const NO_TWO_CHANGES: SignedDuration = SignedDuration::from_hours(24);

pub(crate) fn next(fields: &Fields, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let start = next_second(after)?;
    let offset = zone.to_offset(start);
    let civil = offset.to_datetime(start);
    let from = if civil.second() == 0 {
        civil
    } else {
        next_minute(civil)?
    };
    let found = fields.first_from(from, civil.year() + HORIZON)?;
    let found = offset.to_timestamp(found).ok()?;
    // The clock is the same there, and did not change in between: the calendar was right.
    let steady = zone.to_offset(found) == offset
        && (found.duration_since(start) < NO_TWO_CHANGES
            || zone
                .following(start)
                .next()
                .is_none_or(|change| change.timestamp() > found));
    if steady {
        return Some(found);
    }
    Walk::begin(fields, start, zone).run()
}

/// The first whole second after `after`.
fn next_second(after: Timestamp) -> Option<Timestamp> {
    let second = after.as_nanosecond().div_euclid(1_000_000_000);
    Timestamp::from_second(i64::try_from(second).ok()? + 1).ok()
}

/// The first whole minute after.
pub(crate) fn next_minute(civil: DateTime) -> Option<DateTime> {
    let whole = civil.date().at(civil.hour(), civil.minute(), 0, 0);
    whole.checked_add(SignedDuration::from_mins(1)).ok()
}

/// A walk through the calendar and the day, at one point of time.
struct Walk<'a> {
    fields: &'a Fields,
    zone: &'a TimeZone,
    at: Timestamp,
    civil: DateTime,
    last_year: i16,
    /// Something was stepped: what is below it starts at zero already.
    stepped: bool,
}

impl<'a> Walk<'a> {
    fn begin(fields: &'a Fields, start: Timestamp, zone: &'a TimeZone) -> Self {
        let civil = zone.to_datetime(start);
        Self {
            fields,
            zone,
            at: start,
            civil,
            last_year: civil.year() + HORIZON,
            stepped: false,
        }
    }

    /// `None`: nothing within the horizon, or the end of time.
    fn run(mut self) -> Option<Timestamp> {
        while self.civil.year() <= self.last_year {
            // Each stage says whether its field fits; one that does not has moved a larger field on.
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
            self.go_to(self.civil.checked_add(Span::new().months(1)).ok()?)?;
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
            let (was, today) = (self.at, self.civil);
            self.go_to(today.checked_add(Span::new().days(1)).ok()?)?;
            // A midnight that the clock skipped: on to the day's first hour, or back to midnight the day after.
            match self.civil.hour() {
                0 => {}
                hour @ 13.. => self.pass(SignedDuration::from_hours(i64::from(24 - hour)))?,
                hour => self.pass(SignedDuration::from_hours(i64::from(-hour)))?,
            }
            if self.at <= was {
                // A day that the zone skipped whole. robfig/cron walks in circles here for ever.
                self.go_to(today.checked_add(Span::new().days(2)).ok()?)?;
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
            self.pass(SignedDuration::from_hours(1))?;
            if self.civil.hour() == 0 {
                return Some(false);
            }
        }
        Some(true)
    }

    fn minute(&mut self) -> Option<bool> {
        while !self.fields.has_minute(self.civil.minute()) {
            if !std::mem::replace(&mut self.stepped, true) {
                self.pass(SignedDuration::from_secs(-self.at.as_second().rem_euclid(60)))?;
            }
            self.pass(SignedDuration::from_mins(1))?;
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

    /// Lets real time pass.
    fn pass(&mut self, duration: SignedDuration) -> Option<()> {
        self.at = self.at.checked_add(duration).ok()?;
        self.civil = self.zone.to_datetime(self.at);
        Some(())
    }

    /// Goes to a time on the calendar as Go's time.Date finds it: by the offset that holds there if the time is taken for UTC, and
    /// then, should another one hold at the result, by that.
    fn go_to(&mut self, civil: DateTime) -> Option<()> {
        let first = self.zone.to_offset(Offset::UTC.to_timestamp(civil).ok()?);
        let second = self.zone.to_offset(first.to_timestamp(civil).ok()?);
        self.at = second.to_timestamp(civil).ok()?;
        self.civil = self.zone.to_datetime(self.at);
        Some(())
    }
}
