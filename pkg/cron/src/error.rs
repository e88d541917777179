//! What can be wrong with an expression, said so that it can be mended.

use std::fmt;

/// One of the five fields.
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
    /// 0 to 6 from Sunday on, or SUN to SAT.
    DayOfWeek,
}

impl Field {
    /// In the order in which an expression has them.
    pub(crate) const ALL: [Self; 5] = [Self::Minute, Self::Hour, Self::DayOfMonth, Self::Month, Self::DayOfWeek];

    /// The smallest and the largest value.
    pub(crate) const fn bounds(self) -> (u32, u32) {
        match self {
            Self::Minute => (0, 59),
            Self::Hour => (0, 23),
            Self::DayOfMonth => (1, 31),
            Self::Month => (1, 12),
            Self::DayOfWeek => (0, 6),
        }
    }

    /// The names that stand for numbers, from the smallest value on.
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

/// An expression is not a schedule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// There is nothing.
    #[error(
        "the schedule is empty: give five fields (minute, hour, day of month, month, day of week) or a name such as @daily"
    )]
    Empty,
    /// Not five fields.
    #[error("{found} fields in {text:?}, not 5: minute, hour, day of month, month, day of week (there are no seconds)")]
    FieldCount {
        /// How many there are.
        found: usize,
        /// The expression.
        text: String,
    },
    /// An item of a field is not one.
    #[error("invalid {field} {value:?}: {reason}")]
    Item {
        /// Which field.
        field: Field,
        /// The item.
        value: String,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// `@` and something unknown.
    #[error(
        "unknown name {text:?}: use @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly (in lower case), \
         or @every and a duration"
    )]
    Descriptor {
        /// The expression.
        text: String,
    },
    /// `@every` and no duration.
    #[error("invalid duration {value:?} of @every: {reason}")]
    Every {
        /// What follows `@every`.
        value: String,
        /// What is wrong with it, and what is allowed.
        reason: &'static str,
    },
    /// A zone that nobody knows.
    #[error("unknown time zone {name:?}: use a name of the IANA database, such as Europe/Berlin")]
    Zone {
        /// Its name.
        name: String,
    },
    /// A zone where none may stand.
    #[error("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")]
    ZoneNotAllowed,
}
