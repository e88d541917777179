//! Schedules: what an expression means and when it runs next.
//!
//! The dialect is the one of `batch/v1` CronJob, whose parser is robfig/cron v3: five fields, names, ranges, steps, lists, `?`,
//! `@daily` and its like, `@every`. [`Dialect::CronTab`] adds `H`. The `cron` crate holds the sets that fields stand for; which
//! text is allowed, and the search for the next run, are here, because Kubernetes' answers differ from that crate's.
//!
//! Architecture Invariant: pure. The time and the zone are arguments; the only thing read from outside is the table of time zones.

mod civil;
mod error;
mod every;
mod explain;
mod fields;
mod parse;
mod search;
mod walk;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

pub use crate::error::{Error, Field};
use crate::fields::Fields;

/// When something runs. Parsed once; what cannot be parsed cannot be one.
#[derive(Clone, Debug)]
pub struct Schedule {
    recurrence: Recurrence,
    /// Of a `TZ=` prefix, which overrides the zone that is passed in.
    zone: Option<TimeZone>,
}

#[derive(Clone, Debug)]
enum Recurrence {
    Fields(Fields),
    Every(SignedDuration),
}

/// Whose rules an expression follows.
#[derive(Clone, Copy, Debug)]
pub enum Dialect<'a> {
    /// What robfig/cron v3 takes, to the letter, `TZ=` and `CRON_TZ=` prefixes included.
    Kubernetes,
    /// The same without the prefixes, with `H`, and with an `@every` of a minute at least.
    CronTab {
        /// Spreads `H`: equal for one object over its life, different between objects.
        uid: &'a str,
    },
}

/// What happens to runs at changes of the clock.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DstPolicy {
    /// A run whose hour is named happens once a day: at the end of the gap that swallowed it, or at the first of two occurrences.
    /// Schedules whose hour field has `*`, `?` or a step follow real time.
    #[default]
    Once,
    /// What CronJob does: a run in a gap is skipped, one in an overlap happens twice.
    Kubernetes,
}

/// The time zone of that name in the IANA database. Names are matched to the letter, as Go does on Linux; an empty one is UTC.
/// `Local` is refused: it means another zone on each machine.
///
/// # Errors
///
/// Names what is not a time zone.
pub fn load_zone(name: &str) -> Result<TimeZone, Error> {
    parse::load_zone(name)
}

impl Schedule {
    /// Reads an expression.
    ///
    /// # Errors
    ///
    /// Names the field, the value and what is allowed.
    pub fn parse(text: &str, dialect: Dialect<'_>) -> Result<Self, Error> {
        parse::schedule(text, dialect)
    }

    /// The first run after `after`, always later than it. `None` when there is none within five years, which is where
    /// Kubernetes stops looking.
    ///
    /// `@every` counts from `after`, as Kubernetes does: pass the last run.
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

    /// The last run that is later than `after` and not later than `until`: where going from run to run with [`Self::next`] ends.
    /// Runs beyond its five years are found, too. Cheap whatever lies in between.
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

    /// How many runs are later than `after` and not later than `until`, counted up to `limit`. Each costs a search: keep the limit
    /// low.
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

    /// The schedule as a sentence.
    pub fn explain(&self) -> String {
        explain::sentence(self)
    }
}

#[cfg(test)]
mod tests;
