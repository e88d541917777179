//! The parser for expressions.

use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::{
    Dialect, Error, Recurrence, Schedule,
    error::Field,
    every,
    fields::{self, Fields, Item},
};

pub(crate) fn schedule(text: &str, dialect: Dialect<'_>) -> Result<Schedule, Error> {
    let (zone, text) = match (strip_zone_prefix(text), dialect) {
        (None, _) => (None, text),
        (Some(_), Dialect::CronTab { .. }) => return Err(Error::ZoneNotAllowed),
        (Some(prefix), Dialect::Kubernetes) => {
            let (name, rest) = prefix.split_once(' ').ok_or(Error::Empty)?;
            (Some(load_zone(name)?), rest.trim())
        }
    };
    let recurrence = if text.starts_with('@') {
        descriptor(text, dialect)?
    } else {
        Recurrence::Fields(parse_fields(text, dialect)?)
    };
    Ok(Schedule { recurrence, zone })
}

/// Returns the text after a `TZ=` or `CRON_TZ=` prefix.
fn strip_zone_prefix(text: &str) -> Option<&str> {
    text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ="))
}

/// Loads a time zone. Names are case-sensitive, because Go uses them as file paths.
pub(crate) fn load_zone(name: &str) -> Result<TimeZone, Error> {
    static IN_BINARY: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
    if name.is_empty() || name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    find_zone(name, [jiff::tz::db(), &IN_BINARY]).ok_or_else(|| Error::Zone { name: name.to_owned() })
}

/// Returns the zone of exactly this name in the first database that has it.
pub(crate) fn find_zone(name: &str, databases: [&TimeZoneDatabase; 2]) -> Option<TimeZone> {
    let mut zones = databases.into_iter().filter_map(|database| database.get(name).ok());
    // A database ignores the case, and knows names that are no zones, such as `Etc/Unknown`.
    zones.find(|zone| zone.iana_name() == Some(name))
}

fn descriptor(text: &str, dialect: Dialect<'_>) -> Result<Recurrence, Error> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let duration = text
                .strip_prefix("@every ")
                .ok_or_else(|| Error::Descriptor { text: text.to_owned() })?;
            let period = every::period(duration)?;
            if matches!(dialect, Dialect::CronTab { .. }) && period.as_secs() < 60 {
                return Err(Error::Every {
                    value: duration.to_owned(),
                    reason: "must be at least one minute, because a CronTab runs at most once a minute",
                });
            }
            return Ok(Recurrence::Every(period));
        }
    };
    parse_fields(fields, Dialect::Kubernetes).map(Recurrence::Fields)
}

fn parse_fields(text: &str, dialect: Dialect<'_>) -> Result<Fields, Error> {
    let texts: Vec<&str> = text.split_whitespace().collect();
    if texts.is_empty() {
        return Err(Error::Empty);
    }
    let texts: [&str; 5] = texts.try_into().map_err(|texts: Vec<_>| Error::FieldCount {
        found: texts.len(),
        text: text.to_owned(),
    })?;
    let mut lists: [Vec<Item>; 5] = Default::default();
    let mut stars = [false; 5];
    let mut open = [false; 5];
    for (index, field) in Field::ALL.into_iter().enumerate() {
        // Empty items are skipped, as by Go's strings.FieldsFunc.
        for text in texts[index].split(',').filter(|text| !text.is_empty()) {
            let parsed = item(text, field, dialect).map_err(|reason| Error::Item {
                field,
                value: text.to_owned(),
                reason: reason.to_string(),
            })?;
            stars[index] |= parsed.is_star;
            open[index] |= parsed.is_open;
            lists[index].push(parsed.item);
        }
    }
    let sets = fields::sets(&lists).map_err(|error| Error::Item {
        field: Field::Minute,
        value: text.to_owned(),
        reason: error.to_string(),
    })?;
    let [minutes, hours, days_of_month, months, days_of_week] = sets;
    Ok(Fields {
        minutes,
        hours,
        days_of_month,
        months,
        days_of_week,
        days_in_both: stars[2] || stars[4],
        hours_are_wildcard: open[1],
    })
}

/// The mistake in an item, with what to write instead.
#[derive(Debug, thiserror::Error)]
enum InvalidItem {
    #[error("the range ends before it begins; write it in ascending order within {min} to {max}")]
    Descending { min: u32, max: u32 },
    #[error("write H, H(a-b), H/n or H(a-b)/n")]
    Hash,
    #[error("must be a whole number, 0 or more")]
    NoNumber,
    #[error("must be from {min} to {max}{aliases}")]
    OutOfRange {
        min: u32,
        max: u32,
        /// The names of the values as the end of the sentence, or an empty text.
        aliases: &'static str,
    },
    #[error("it has more than one -")]
    SeveralDashes,
    #[error("it has more than one /")]
    SeveralSlashes,
    #[error("the number is too large")]
    TooLarge,
    #[error("the step must be 1 or more")]
    ZeroStep,
}

struct Parsed {
    item: Item,
    /// Whether the item is a `*` or `?` without a step over 1. If one of the two day fields has
    /// such an item, only the other field counts.
    is_star: bool,
    /// Whether the item has a `*`, a `?` or a step.
    is_open: bool,
}

/// Parses one item: `*`, `?`, `N`, `N-M` or `H`, each with an optional step.
fn item(text: &str, field: Field, dialect: Dialect<'_>) -> Result<Parsed, InvalidItem> {
    let (min, max) = field.bounds();
    let mut parts = text.split('/');
    let range = parts.next().unwrap_or_default();
    let step = parts.next();
    if parts.next().is_some() {
        return Err(InvalidItem::SeveralSlashes);
    }
    if let (Dialect::CronTab { uid }, Some(within)) = (dialect, range.strip_prefix('H')) {
        return parse_h(within, step, field, uid);
    }
    let mut ends = range.split('-');
    let (first, last) = (ends.next().unwrap_or_default(), ends.next());
    let is_any = matches!(first, "*" | "?");
    let (first, mut last) = if is_any {
        (min, max)
    } else {
        let first = value(first, field)?;
        (first, last.map_or(Ok(first), |last| value(last, field))?)
    };
    if !is_any && ends.next().is_some() {
        return Err(InvalidItem::SeveralDashes);
    }
    let step = match step {
        None => 1,
        Some(text) => {
            if !range.contains('-') {
                // N/step means from N to the maximum.
                last = max;
            }
            number(text)?
        }
    };
    let (min, max) = field.bounds();
    check(first, last, step, min, max)?;
    Ok(Parsed {
        item: Item { first, last, step },
        is_star: is_any && step == 1,
        is_open: is_any || text.contains('/'),
    })
}

fn check(first: u32, last: u32, step: u32, min: u32, max: u32) -> Result<(), InvalidItem> {
    if first < min || last > max {
        return Err(InvalidItem::OutOfRange { min, max, aliases: "" });
    }
    if first > last {
        return Err(InvalidItem::Descending { min, max });
    }
    if step == 0 {
        return Err(InvalidItem::ZeroStep);
    }
    Ok(())
}

/// Parses `H` or `H(a-b)`, each with an optional step. A hash of the object's UID chooses the
/// value, so it stays the same for the object's whole life.
fn parse_h(within: &str, step: Option<&str>, field: Field, uid: &str) -> Result<Parsed, InvalidItem> {
    let (min, max) = field.bounds();
    // The 28th is the last day that every month has.
    let max = if field == Field::DayOfMonth { 28 } else { max };
    let (first, last) = if within.is_empty() {
        (min, max)
    } else {
        let range = within.strip_prefix('(').and_then(|within| within.strip_suffix(')'));
        let ends = range.and_then(|range| range.split_once('-'));
        let (first, last) = ends.ok_or(InvalidItem::Hash)?;
        (value(first, field)?, value(last, field)?)
    };
    let index = Field::ALL.iter().position(|other| *other == field).unwrap_or_default();
    let hash = fnv1a(uid.bytes().chain(u8::try_from(index)));
    let step = step.map(number).transpose()?;
    check(first, last, step.unwrap_or(1), min, max)?;
    let width = step.unwrap_or(u32::MAX).min(last - first + 1);
    let start = first + u32::try_from(hash % u64::from(width)).unwrap_or_default();
    Ok(Parsed {
        item: Item {
            first: start,
            last: if step.is_some() { last } else { start },
            step: step.unwrap_or(1),
        },
        is_star: false,
        is_open: step.is_some(),
    })
}

/// Returns the 64-bit FNV-1a hash.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn value(text: &str, field: Field) -> Result<u32, InvalidItem> {
    let (min, max) = field.bounds();
    let lower = text.to_lowercase();
    let named = field.names().iter().position(|name| *name == lower);
    if let Some(index) = named.and_then(|index| u32::try_from(index).ok()) {
        return Ok(min + index);
    }
    let aliases = match field {
        Field::Month => ", or JAN to DEC",
        Field::DayOfWeek => " (0 is Sunday), or SUN to SAT",
        _ => "",
    };
    number(text).map_err(|_| InvalidItem::OutOfRange { min, max, aliases })
}

/// Parses a number as Go's Atoi does: a plus sign is allowed. A number over 32 bits becomes the
/// maximum, which is too large for every field.
fn number(text: &str) -> Result<u32, InvalidItem> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidItem::NoNumber);
    }
    let number = digits.parse::<i64>().map_err(|_| InvalidItem::TooLarge)?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}
