//! Errors in expressions, with messages that say how to correct them.

use std::fmt;

/// A field of an expression.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Field {
    /// 0 to 59.
    Minute,
    /// 0 to 23.
    Hour,
    /// 1 to 31.
    DayOfMonth,
    /// 1 to 12, or JAN to DEC.
    Month,
    /// 0 to 6, where 0 is Sunday, or SUN to SAT.
    DayOfWeek,
}

impl Field {
    /// All fields, in the order of an expression.
    pub(crate) const ALL: [Self; 5] = [Self::Minute, Self::Hour, Self::DayOfMonth, Self::Month, Self::DayOfWeek];

    /// Returns the smallest and the largest value.
    pub(crate) const fn bounds(self) -> (u32, u32) {
        match self {
            Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::DayOfMonth => (1, 31),
            Self::Month => (1, 12),
            Self::DayOfWeek => (0, 6),
        }
    }

    /// Returns the names of the values, in ascending order of the values.
    pub(crate) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Month => &[
                "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
            ],
            Self::DayOfWeek => &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
            _ => &[],
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
        })
    }
}

/// The reason why an expression is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// The expression is empty.
    #[error(
        "the schedule is empty: write five fields (minute, hour, day of month, month, day of week) or a descriptor such as @daily"
    )]
    Empty,
    /// The expression does not have five fields.
    #[error("found {found} fields in {text:?}, not 5: minute, hour, day of month, month, day of week (no seconds)")]
    FieldCount {
        /// The number of fields.
        found: usize,
        /// The expression.
        text: String,
    },
    /// An item of a field is invalid.
    #[error("invalid {field} {value:?}: {reason}")]
    Item {
        /// The field.
        field: Field,
        /// The item.
        value: String,
        /// Why it is invalid, and which values are allowed.
        reason: String,
    },
    /// The expression starts with `@`, but is no known descriptor.
    #[error(
        "unknown descriptor {text:?}: use @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly (in lower case), \
         or @every followed by a duration"
    )]
    Descriptor {
        /// The expression.
        text: String,
    },
    /// `@every` has an invalid duration.
    #[error("invalid @every duration {value:?}: {reason}")]
    Every {
        /// The text after `@every`.
        value: String,
        /// Why it is invalid, and which values are allowed.
        reason: &'static str,
    },
    /// The time zone does not exist.
    #[error("unknown time zone {name:?}: use a name from the IANA time zone database, such as Europe/Berlin")]
    Zone {
        /// The name of the time zone.
        name: String,
    },
    /// The dialect does not allow a zone in the expression.
    #[error("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")]
    ZoneNotAllowed,
}
