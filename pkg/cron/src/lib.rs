//! Cron schedules: parses expressions and computes their runs.
//!
//! The dialect is the one of `batch/v1` CronJob, whose parser is robfig/cron v3: five fields,
//! names, ranges, steps, lists, `?`, descriptors such as `@daily`, and `@every`.
//! [`Dialect::CronTab`] adds `H`. The `cron` crate evaluates the sets of values that the fields
//! allow. The grammar and the search for the next run are implemented here, because Kubernetes'
//! results differ from that crate's.
//!
//! Architecture Invariant: this crate is pure. The time and the zone are arguments; the time zone
//! database is the only outside data that it reads.

mod civil;
mod error;
mod every;
mod explain;
mod fields;
mod parse;
mod schedule;
mod search;
mod walk;

use jiff::{Timestamp, tz::TimeZone};

pub use crate::error::{Error, Field};
use crate::schedule::Recurrence;
pub use crate::schedule::{Dialect, DstPolicy, Schedule};

/// Returns the time zone with that name in the IANA time zone database. Names are case-sensitive,
/// as in Go on Linux; the empty name is UTC. `Local` is an error, because it is a different zone on
/// each machine.
///
/// The database of the host comes first. Some hosts leave out old names, such as `US/Central`;
/// these are in the database in the binary.
///
/// # Errors
///
/// Returns an error when the database has no time zone with that name.
pub fn load_zone(name: &str) -> Result<TimeZone, Error> {
    parse::load_zone(name)
}

impl Schedule {
    /// Parses an expression.
    ///
    /// # Errors
    ///
    /// Returns an error when the expression is invalid. It names the field, the value and the
    /// allowed values.
    pub fn parse(text: &str, dialect: Dialect<'_>) -> Result<Self, Error> {
        parse::schedule(text, dialect)
    }

    /// Returns the first run later than `after`, or `None` if there is none within five years.
    /// Kubernetes stops searching there, too.
    ///
    /// `@every` counts from `after`, as in Kubernetes, so pass the last run.
    pub fn next(&self, after: Timestamp, zone: &TimeZone, policy: DstPolicy) -> Option<Timestamp> {
        let zone = self.zone.as_ref().unwrap_or(zone);
        match &self.recurrence {
            Recurrence::Every(period) => every::next(*period, after),
            Recurrence::Fields(fields) if policy == DstPolicy::Once && fields.has_fixed_hours() => {
                civil::next(fields, after, zone)
            }
            Recurrence::Fields(fields) => search::next(fields, after, zone),
        }
    }

    /// Returns the last run later than `after` and not later than `until`. Repeated calls of
    /// [`Self::next`] from `after` end at the same run, unless two runs are more than five years
    /// apart. The cost hardly depends on the distance.
    ///
    /// `@every` counts from `after`.
    pub fn latest(&self, after: Timestamp, until: Timestamp, zone: &TimeZone, policy: DstPolicy) -> Option<Timestamp> {
        if until <= after {
            return None;
        }
        let zone = self.zone.as_ref().unwrap_or(zone);
        match &self.recurrence {
            Recurrence::Every(period) => every::latest(*period, after, until),
            Recurrence::Fields(fields) if policy == DstPolicy::Once && fields.has_fixed_hours() => {
                civil::latest(fields, after, until, zone)
            }
            Recurrence::Fields(fields) => search::latest(fields, after, until, zone),
        }
    }

    /// Counts the runs later than `after` and not later than `until`, up to `limit`. Each run costs
    /// a search, so keep the limit low.
    ///
    /// `@every` counts from `after`.
    pub fn count(&self, after: Timestamp, until: Timestamp, zone: &TimeZone, policy: DstPolicy, limit: u32) -> u32 {
        let mut at = after;
        let mut count = 0;
        while count < limit && at < until {
            match self.next(at, zone, policy) {
                Some(next) if next > until => break,
                Some(next) => {
                    count += 1;
                    at = next;
                }
                None => match at.checked_add(search::MIN_SEARCH_SPAN) {
                    Ok(searched) => at = searched,
                    Err(_) => break,
                },
            }
        }
        count
    }

    /// Describes the schedule in a sentence, which names this zone, if any. A zone in the
    /// expression overrides it.
    pub fn explain(&self, zone: Option<&TimeZone>) -> String {
        explain::sentence(self, zone)
    }
}

#[cfg(test)]
mod tests;
