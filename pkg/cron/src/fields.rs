//! The sets of minutes, hours, days and months that an expression allows, as bit sets.

use std::str::FromStr;

use cron::TimeUnitSpec;
use jiff::civil::{Date, DateTime};

use crate::error::Field;

/// The set of all days of the week.
const WEEK: u64 = 0x7f;

/// The values that the five fields allow. Bit `n` of a set represents the value `n`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Fields {
    pub(crate) minutes: u64,
    pub(crate) hours: u64,
    pub(crate) days_of_month: u64,
    pub(crate) months: u64,
    pub(crate) days_of_week: u64,
    /// Whether a day must be in both sets of days, because one of the two fields has a star.
    /// Otherwise one set suffices.
    pub(crate) days_in_both: bool,
    /// Whether the hour field has a `*`, `?` or step, so that runs follow real time when the clock
    /// changes.
    pub(crate) hours_are_wildcard: bool,
}

/// One item of a field's list, as numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Item {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) step: u32,
}

/// Converts the five lists of items into sets with the `cron` crate.
///
/// That crate counts days of the week from 1, expects a field for seconds, and accepts neither
/// empty lists nor steps beyond the range. This function converts the lists accordingly; an empty
/// list becomes an empty set.
pub(crate) fn sets(lists: &[Vec<Item>; 5]) -> Result<[u64; 5], cron::error::Error> {
    let mut text = String::from("0");
    for (field, items) in Field::ALL.iter().zip(lists) {
        text.push(' ');
        let shift = u32::from(*field == Field::DayOfWeek);
        let items: Vec<_> = items.iter().map(|item| item.cron_syntax(shift)).collect();
        text.push_str(&if items.is_empty() {
            "*".to_owned()
        } else {
            items.join(",")
        });
    }
    let schedule = cron::Schedule::from_str(&text)?;
    let parsed = [
        bits(schedule.minutes()),
        bits(schedule.hours()),
        bits(schedule.days_of_month()),
        bits(schedule.months()),
        bits(schedule.days_of_week()) >> 1,
    ];
    let mut sets = [0; 5];
    for ((set, parsed), items) in sets.iter_mut().zip(parsed).zip(lists) {
        *set = if items.is_empty() { 0 } else { parsed };
    }
    Ok(sets)
}

fn bits(set: &impl TimeUnitSpec) -> u64 {
    set.iter()
        .filter(|value| *value < 64)
        .fold(0, |bits, value| bits | 1 << value)
}

impl Item {
    fn cron_syntax(self, shift: u32) -> String {
        let (first, last) = (self.first + shift, self.last + shift);
        if first == last || self.step > last - first {
            first.to_string()
        } else if self.step == 1 {
            format!("{first}-{last}")
        } else {
            format!("{first}-{last}/{}", self.step)
        }
    }
}

impl Fields {
    /// Returns whether the hours are fixed, so that a run has a definite time of day.
    pub(crate) fn has_fixed_hours(&self) -> bool {
        !self.hours_are_wildcard
    }

    pub(crate) fn has_month(&self, month: i8) -> bool {
        has(self.months, month)
    }

    pub(crate) fn has_hour(&self, hour: i8) -> bool {
        has(self.hours, hour)
    }

    pub(crate) fn has_minute(&self, minute: i8) -> bool {
        has(self.minutes, minute)
    }

    pub(crate) fn has_day(&self, date: Date) -> bool {
        let of_month = has(self.days_of_month, date.day());
        // The day of the week is the most expensive to compute, so this check comes last.
        let of_week = || self.days_of_week == WEEK || has(self.days_of_week, date.weekday().to_sunday_zero_offset());
        if self.days_in_both {
            of_month && of_week()
        } else {
            of_month || of_week()
        }
    }

    /// Returns the allowed days in the month of `date`.
    pub(crate) fn days(&self, date: Date) -> u64 {
        // Bit 1 is the first day of the month; the pattern of the week repeats from there.
        let first = date.first_of_month().weekday().to_sunday_zero_offset();
        let week = self.days_of_week | self.days_of_week << 7;
        let week = week >> first & WEEK;
        let weekly = (week | week << 7 | week << 14 | week << 21 | week << 28) << 1;
        let days = if self.days_in_both {
            self.days_of_month & weekly
        } else {
            self.days_of_month | weekly
        };
        days & ((1 << (date.days_in_month() + 1)) - 1)
    }

    /// Returns the first allowed minute at or after `from`, up to the end of year `last_year`,
    /// ignoring changes of the clock.
    pub(crate) fn first_from(&self, from: DateTime, last_year: i16) -> Option<DateTime> {
        let mut date = from.date();
        // The time of day only matters on the first day.
        let is_allowed = self.has_month(date.month()) && self.has_day(date);
        let found = is_allowed.then(|| self.first_in_day(date, from.hour(), from.minute()));
        if let Some(found) = found.flatten() {
            return Some(found);
        }
        let mut day = date.day() + 1;
        while date.year() <= last_year {
            if self.has_month(date.month()) {
                let days = self.days(date) >> day << day;
                if days != 0 {
                    let date = Date::new(date.year(), date.month(), lowest(days)).ok()?;
                    return self.first_in_day(date, 0, 0);
                }
            }
            date = date.last_of_month().tomorrow().ok()?;
            day = 1;
        }
        None
    }

    /// Returns the last allowed minute at or before `to` and not before `from`, ignoring changes of
    /// the clock.
    pub(crate) fn last_until(&self, to: DateTime, from: DateTime) -> Option<DateTime> {
        self.last_since_date(to, from.date()).filter(|found| *found >= from)
    }

    fn last_since_date(&self, to: DateTime, from: Date) -> Option<DateTime> {
        let mut date = to.date();
        // The time of day only matters on the last day.
        let is_allowed = self.has_month(date.month()) && self.has_day(date);
        let found = is_allowed.then(|| self.last_in_day(date, to.hour(), to.minute()));
        if let Some(found) = found.flatten() {
            return Some(found);
        }
        let mut before = date.day();
        while date >= from {
            if self.has_month(date.month()) {
                let days = self.days(date) & below(before);
                if days != 0 {
                    let date = Date::new(date.year(), date.month(), highest(days)).ok()?;
                    return self.last_in_day(date, 23, 59);
                }
            }
            date = date.first_of_month().yesterday().ok()?;
            before = 32;
        }
        None
    }

    fn last_in_day(&self, date: Date, hour: i8, minute: i8) -> Option<DateTime> {
        let minutes = self.minutes & below(minute + 1);
        if self.has_hour(hour) && minutes != 0 {
            return Some(date.at(hour, highest(minutes), 0, 0));
        }
        let hours = self.hours & below(hour);
        (hours != 0 && self.minutes != 0).then(|| date.at(highest(hours), highest(self.minutes), 0, 0))
    }

    fn first_in_day(&self, date: Date, hour: i8, minute: i8) -> Option<DateTime> {
        let minutes = self.minutes >> minute << minute;
        if self.has_hour(hour) && minutes != 0 {
            return Some(date.at(hour, lowest(minutes), 0, 0));
        }
        let hours = self.hours >> (hour + 1) << (hour + 1);
        (hours != 0 && self.minutes != 0).then(|| date.at(lowest(hours), lowest(self.minutes), 0, 0))
    }
}

fn has(set: u64, value: i8) -> bool {
    set >> value & 1 == 1
}

/// Returns the set of all values below `value`, which is at most 63.
fn below(value: i8) -> u64 {
    (1 << value) - 1
}

/// Returns the highest value of a non-empty set.
fn highest(set: u64) -> i8 {
    i8::try_from(set.ilog2()).unwrap_or(i8::MIN)
}

/// Returns the lowest value of a non-empty set.
pub(crate) fn lowest(set: u64) -> i8 {
    i8::try_from(set.trailing_zeros()).unwrap_or(i8::MAX)
}
