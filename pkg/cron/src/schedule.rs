//! Schedules, and the rules that they follow.

use jiff::{SignedDuration, tz::TimeZone};

use crate::fields::Fields;

/// A parsed schedule, which is always valid.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) recurrence: Recurrence,
    /// The zone of a `TZ=` or `CRON_TZ=` prefix, which overrides the zone that the caller passes.
    pub(crate) zone: Option<TimeZone>,
}

#[derive(Clone, Debug)]
pub(crate) enum Recurrence {
    Fields(Fields),
    Every(SignedDuration),
}

/// The rules that an expression follows.
#[derive(Clone, Copy, Debug)]
pub enum Dialect<'a> {
    /// Exactly what robfig/cron v3 accepts, including the prefixes `TZ=` and `CRON_TZ=`.
    Kubernetes,
    /// The same without the prefixes, with `H`, and with a minimum of one minute for `@every`.
    CronTab {
        /// Determines the values of `H`: constant for one object, different between objects.
        uid: &'a str,
    },
}

/// The policy for runs when the clock changes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DstPolicy {
    /// Runs with fixed hours are neither skipped nor repeated. Runs in a gap happen once, at its
    /// end; a run whose local time occurs twice happens at the first occurrence. Schedules whose
    /// hour field has `*`, `?` or a step follow real time.
    #[default]
    Once,
    /// As in CronJob, a run in a gap is skipped, and a run in an overlap happens twice.
    Kubernetes,
}
