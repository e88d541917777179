//! Describes a schedule in a sentence.

use jiff::tz::TimeZone;

use crate::{Recurrence, Schedule, error::Field, fields::Fields};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
/// The maximum number of times of day that are listed. With more times, the sentence lists hours
/// and minutes separately.
const MAX_LISTED_TIMES: u32 = 6;

pub(crate) fn sentence(schedule: &Schedule, zone: Option<&TimeZone>) -> String {
    let when = match &schedule.recurrence {
        Recurrence::Every(period) => format!("Every {period:#}, counted from the last run"),
        Recurrence::Fields(fields) => format!("{}{}{}", times(fields), days(fields), months(fields)),
    };
    let zone = schedule.zone.as_ref().or(zone).and_then(TimeZone::iana_name);
    zone.map_or_else(
        || format!("{when}."),
        |zone| format!("{when}, in the time zone {zone}."),
    )
}

fn times(fields: &Fields) -> String {
    let (minutes, hours) = (fields.minutes, fields.hours);
    if minutes.count_ones() * hours.count_ones() <= MAX_LISTED_TIMES {
        let times: Vec<_> = values(hours)
            .flat_map(|hour| values(minutes).map(move |minute| format!("{hour:02}:{minute:02}")))
            .collect();
        return format!("At {}", join_with_and(&times));
    }
    let minutes = match period(minutes, Field::Minute) {
        Some(1) => "Every minute".to_owned(),
        Some(step) => format!("Every {step} minutes"),
        None => format!("At minute {}", ranges(minutes, |minute| minute.to_string())),
    };
    let hours = match period(hours, Field::Hour) {
        Some(1) => String::new(),
        Some(step) => format!(" of every {step} hours from 0 on"),
        None => format!(" of hour {}", ranges(hours, |hour| hour.to_string())),
    };
    let every_hour = hours.is_empty() && minutes.starts_with("At");
    format!("{minutes}{}", if every_hour { " of every hour" } else { &hours })
}

fn days(fields: &Fields) -> String {
    let of_month = (!is_full(fields.days_of_month, Field::DayOfMonth)).then(|| {
        format!(
            "on day {} of the month",
            ranges(fields.days_of_month, |day| day.to_string())
        )
    });
    let of_week = (!is_full(fields.days_of_week, Field::DayOfWeek))
        .then(|| format!("on {}", ranges(fields.days_of_week, |day| name(&DAYS, day))));
    let both = if fields.days_in_both { "if it is also" } else { "or" };
    match (of_month, of_week, fields.days_in_both) {
        (Some(of_month), Some(of_week), _) => format!(", {of_month} {both} {of_week}"),
        (Some(days), None, true) | (None, Some(days), true) => format!(", {days}"),
        // One of the two sets contains every day, and one match suffices.
        _ => ", every day".to_owned(),
    }
}

fn months(fields: &Fields) -> String {
    if is_full(fields.months, Field::Month) {
        return String::new();
    }
    format!(", in {}", ranges(fields.months, |month| name(&MONTHS, month - 1)))
}

fn name(names: &[&str], index: u32) -> String {
    let name = usize::try_from(index).ok().and_then(|index| names.get(index));
    name.copied().unwrap_or_default().to_owned()
}

fn values(set: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |value| set >> value & 1 == 1)
}

fn is_full(set: u64, field: Field) -> bool {
    let (min, max) = field.bounds();
    (min..=max).all(|value| set >> value & 1 == 1)
}

/// Returns the step of a set that starts at the field's minimum and is evenly spaced up to its
/// maximum.
fn period(set: u64, field: Field) -> Option<u32> {
    let (min, max) = field.bounds();
    let step = values(set).nth(1)? - min;
    let is_regular = values(set).eq((min..=max).step_by(usize::try_from(step).ok()?));
    // A step of 7 minutes does not divide the hour, so "every 7 minutes" would be wrong.
    (is_regular && (max + 1 - min).is_multiple_of(step)).then_some(step)
}

/// Lists the values of a set, for example `1 through 5, 9 and 12`.
fn ranges(set: u64, word: impl Fn(u32) -> String) -> String {
    let mut parts = Vec::new();
    let mut rest = values(set).peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while let Some(next) = rest.next_if_eq(&(last + 1)) {
            last = next;
        }
        match last - first {
            0 => parts.push(word(first)),
            1 => parts.extend([word(first), word(last)]),
            _ => parts.push(format!("{} through {}", word(first), word(last))),
        }
    }
    if parts.is_empty() {
        return "none".to_owned();
    }
    join_with_and(&parts)
}

fn join_with_and(parts: &[String]) -> String {
    match parts {
        [] => "no time".to_owned(),
        [only] => only.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}
