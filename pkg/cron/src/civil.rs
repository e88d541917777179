//! Computes the runs of schedules with fixed hours, each once however the clock changes
//! ([`DstPolicy::Once`](crate::DstPolicy)).
//!
//! Runs are times on the calendar. If the clock jumps over runs, they happen once together, at the
//! end of the gap. A run whose time occurs twice happens at the first occurrence. Both rules keep
//! the order of the calendar. So the next run is the first one on the calendar whose real time is
//! later than the start.

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

/// Returns the last run later than `after` and not later than `until`.
pub(crate) fn latest(fields: &Fields, after: Timestamp, until: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let from = next_minute(zone.to_datetime(after))?;
    let run = fields.last_until(last_shown(until, zone), from)?;
    // Where times occur twice, a run that is later on the calendar may have happened before
    // `after`.
    instant(run, zone).filter(|at| *at > after)
}

/// Returns the latest time that the clock has shown up to `until`. If the clock was set back, that
/// is later than the time that it shows now.
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

/// Returns when the clock jumped over `run`.
fn gap_end(run: DateTime, before: Offset, zone: &TimeZone) -> Option<Timestamp> {
    // If the clock had not jumped, it would show `run` at or after the jump.
    let unjumped = before.to_timestamp(run).ok()?;
    let after = unjumped.checked_add(SignedDuration::from_secs(1)).ok()?;
    zone.preceding(after).next().map(|change| change.timestamp())
}
