//! The next run of a schedule that names its hours, each run once whatever the clock does ([`DstPolicy::Once`](crate::DstPolicy)).
//!
//! Runs are times on the calendar. One that a change of the clock swallowed happens at the end of the gap, once for all that it
//! swallowed; one that comes twice happens the first time. Both keep the order of the calendar, so the first run on the calendar
//! that is later in real time is the next one.

use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, Offset, TimeZone},
};

use crate::{
    fields::Fields,
    search::{HORIZON, next_minute},
};

pub(crate) fn next(fields: &Fields, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let start = zone.to_datetime(after);
    let last_year = start.year() + HORIZON;
    let mut from = next_minute(start)?;
    loop {
        let run = fields.first_from(from, last_year)?;
        let at = instant(run, zone)?;
        if at > after {
            return Some(at);
        }
        from = next_minute(run)?;
    }
}

/// The last run after `after`, up to `until`.
pub(crate) fn latest(fields: &Fields, after: Timestamp, until: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let from = next_minute(zone.to_datetime(after))?;
    let run = fields.last_until(last_shown(until, zone), from)?;
    // Where times come twice, what is later on the calendar may have run before `after`.
    instant(run, zone).filter(|at| *at > after)
}

/// The latest time that the clock has shown up to `until`: when it was set back, later than what it shows.
fn last_shown(until: Timestamp, zone: &TimeZone) -> DateTime {
    let shown = zone.to_datetime(until);
    let past_until = until.checked_add(SignedDuration::from_nanos(1)).unwrap_or(until);
    let change = zone.preceding(past_until).next();
    let before_change = change.and_then(|change| change.timestamp().checked_sub(SignedDuration::from_secs(1)).ok());
    before_change.map_or(shown, |before| shown.max(zone.to_datetime(before)))
}

fn instant(run: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(run).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(run).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(run).ok(),
        AmbiguousOffset::Gap { before, .. } => gap_end(run, before, zone),
    }
}

/// When the clock jumped over `run`.
fn gap_end(run: DateTime, before: Offset, zone: &TimeZone) -> Option<Timestamp> {
    // Had the clock not jumped, it would show `run` at or after the jump.
    let unjumped = before.to_timestamp(run).ok()?;
    let after = unjumped.checked_add(SignedDuration::from_secs(1)).ok()?;
    zone.preceding(after).next().map(|change| change.timestamp())
}
