//! Computes the runs of schedules with fixed hours under [`DstPolicy::Once`](crate::DstPolicy):
//! changes of the clock neither skip nor repeat a run.
//!
//! Runs are local times. If the clock jumps over several runs, they become one run at the end of
//! the gap. A run whose local time occurs twice happens at the first occurrence. Both rules keep
//! the order of local times. So the next run is the first local time that matches and whose real
//! time is later than the start.

use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, Offset, TimeZone},
};

use crate::{fields::Fields, search::next_minute, walk::HORIZON};

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
    // Where local times occur twice, a run with a later local time may have happened before
    // `after`.
    instant(run, zone).filter(|at| *at > after)
}

/// Returns the latest local time that the clock has shown up to `until`. If the clock went back
/// shortly before, that is later than the local time of `until`.
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

/// Returns the end of the gap that contains `run`.
fn gap_end(run: DateTime, before: Offset, zone: &TimeZone) -> Option<Timestamp> {
    // By the offset before the gap, `run` is at or after the jump.
    let without_gap = before.to_timestamp(run).ok()?;
    let after = without_gap.checked_add(SignedDuration::from_secs(1)).ok()?;
    zone.preceding(after).next().map(|change| change.timestamp())
}
