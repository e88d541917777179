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
