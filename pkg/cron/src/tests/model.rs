//! A model of robfig/cron's walk that takes every step. The search must find the same runs under
//! Kubernetes' policy.

use jiff::{
    SignedDuration,
    civil::{Date, DateTime},
    tz::Offset,
};
use proptest::{prelude::*, sample::select};

use super::{
    past::{ZONES, expression},
    *,
};
use crate::fields::Fields;

struct Model<'a> {
    fields: &'a Fields,
    zone: &'a TimeZone,
    at: Timestamp,
    stepped: bool,
}

/// Whether the step changed a larger field, so the walk starts over; `None` beyond the range of
/// `Timestamp`.
type Wrapped = Option<bool>;

impl Model<'_> {
    fn civil(&self) -> DateTime {
        self.zone.to_datetime(self.at)
    }

    fn next(&mut self) -> Option<Timestamp> {
        let last_year = self.civil().year() + 5;
        while self.civil().year() <= last_year {
            let wrapped = self.months()? || self.days()? || self.hours()? || self.minutes()? || self.seconds()?;
            if !wrapped {
                return Some(self.at);
            }
        }
        None
    }

    fn months(&mut self) -> Wrapped {
        while !self.fields.has_month(self.civil().month()) {
            self.truncate(|civil| civil.date().first_of_month().at(0, 0, 0, 0))?;
            let (date, time) = (self.civil().date(), self.civil().time());
            let first = date.last_of_month().tomorrow().ok()?;
            self.go_to(add_days(first, date.day() - 1)?.to_datetime(time))?;
            if self.civil().month() == 1 {
                return Some(true);
            }
        }
        Some(false)
    }

    fn days(&mut self) -> Wrapped {
        while !self.fields.has_day(self.civil().date()) {
            self.truncate(|civil| civil.date().at(0, 0, 0, 0))?;
            let (before, today) = (self.at, self.civil());
            self.go_to(today.date().tomorrow().ok()?.to_datetime(today.time()))?;
            match i64::from(self.civil().hour()) {
                0 => {}
                hour if hour > 12 => self.pass(3_600 * (24 - hour))?,
                hour => self.pass(-3_600 * hour)?,
            }
            if self.at <= before {
                self.go_to(add_days(today.date(), 2)?.to_datetime(today.time()))?;
            }
            if self.civil().day() == 1 {
                return Some(true);
            }
        }
        Some(false)
    }

    fn hours(&mut self) -> Wrapped {
        while !self.fields.has_hour(self.civil().hour()) {
            self.truncate(|civil| civil.date().at(civil.hour(), 0, 0, 0))?;
            self.pass(3_600)?;
            if self.civil().hour() == 0 {
                return Some(true);
            }
        }
        Some(false)
    }

    fn minutes(&mut self) -> Wrapped {
        while !self.fields.has_minute(self.civil().minute()) {
            if !std::mem::replace(&mut self.stepped, true) {
                self.pass(-i64::from(self.civil().second()))?;
            }
            self.pass(60)?;
            if self.civil().minute() == 0 {
                return Some(true);
            }
        }
        Some(false)
    }

    fn seconds(&mut self) -> Wrapped {
        while self.civil().second() != 0 {
            self.stepped = true;
            self.pass(1)?;
            if self.civil().second() == 0 {
                return Some(true);
            }
        }
        Some(false)
    }

    fn truncate(&mut self, to: impl Fn(DateTime) -> DateTime) -> Option<()> {
        if std::mem::replace(&mut self.stepped, true) {
            return Some(());
        }
        self.go_to(to(self.civil()))
    }

    fn pass(&mut self, seconds: i64) -> Option<()> {
        self.at = self.at.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        Some(())
    }

    fn go_to(&mut self, civil: DateTime) -> Option<()> {
        let first = self.zone.to_offset(Offset::UTC.to_timestamp(civil).ok()?);
        let second = self.zone.to_offset(first.to_timestamp(civil).ok()?);
        self.at = second.to_timestamp(civil).ok()?;
        Some(())
    }
}

fn add_days(date: Date, days: i8) -> Option<Date> {
    date.checked_add(SignedDuration::from_hours(24 * i64::from(days))).ok()
}

fn check(text: &str, zone: &str, after: Timestamp) -> Result<(), TestCaseError> {
    let schedule = Schedule::parse(text, CRONTAB).unwrap();
    let Recurrence::Fields(fields) = &schedule.recurrence else {
        return Ok(());
    };
    let zone = TimeZone::get(zone).unwrap();
    let start = Timestamp::from_second(every::second(after) + 1).unwrap();
    let walks = (0..).map(|minutes| Model {
        fields,
        zone: &zone,
        at: start + SignedDuration::from_mins(minutes),
        stepped: false,
    });
    // A walk that goes back over a change of the clock may end at or before its start. Then start
    // the next walk a minute later.
    let mut ends = walks.map(|mut walk| walk.next());
    let expected = ends.find(|end| end.is_none_or(|end| end > after)).flatten();
    let next = schedule.next(after, &zone, DstPolicy::Kubernetes);
    prop_assert_eq!(next, expected, "{} after {} in {:?}", text, after, zone.iana_name());
    Ok(())
}

proptest! {
    #[test]
    fn search_and_model_find_the_same_run(
        text in expression(),
        zone in select(&ZONES[..]),
        // From 1905 to 2096.
        after in -2_050_000_000_i64..4_000_000_000,
    ) {
        check(&text, zone, Timestamp::from_second(after).unwrap())?;
    }

    #[test]
    fn search_and_model_agree_near_changes_of_the_clock(
        text in expression(),
        zone in select(&ZONES[..]),
        change in 0_usize..200,
        minutes in -6_000_i64..3_000,
        seconds in 0_i64..60,
    ) {
        let first = Timestamp::from_second(-3_000_000_000).unwrap();
        let changes = TimeZone::get(zone).unwrap();
        let change = changes.following(first).nth(change).map_or(first, |change| change.timestamp());
        check(&text, zone, change + SignedDuration::from_secs(minutes * 60 + seconds))?;
    }
}
