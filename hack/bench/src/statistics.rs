//! Values, percentiles, medians and number formatting.
//!
//! Architecture Invariant: pure.

/// The unit in which a number is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unit {
    Count,
    /// Memory as the kernel reports it, formatted in MiB.
    Kibibytes,
    Seconds,
}

/// The value of a measure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) measure: String,
    pub(crate) unit: Unit,
    pub(crate) number: f64,
}

impl Unit {
    /// Returns the value of a measure in this unit.
    pub(crate) fn of(self, measure: impl Into<String>, number: f64) -> Value {
        let (measure, unit) = (measure.into(), self);
        Value { measure, unit, number }
    }
}

/// Returns a count as a number.
pub(crate) fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Returns the percentile of sorted values by nearest rank, so the result is one of the values.
pub(crate) fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// The median and the extremes of the rounds of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Returns `None` when there are no values. The median of an even number of values is the mean
    /// of the two in the middle.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let (lower, upper) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let median = f64::midpoint(lower, upper);
        Some(Self { least, median, most })
    }
}

/// Formats a number with three significant digits in a unit that suits its size.
pub(crate) fn written(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Count => format!("{value:.0}"),
        Unit::Kibibytes => format!("{} MiB", digits(value / 1024.0)),
        Unit::Seconds => {
            let (factor, name) = match value.abs() {
                size if size == 0.0 || size >= 1.0 => (1.0, "s"),
                size if size >= 1e-3 => (1e3, "ms"),
                size if size >= 1e-6 => (1e6, "µs"),
                _ => (1e9, "ns"),
            };
            format!("{} {name}", digits(value * factor))
        }
    }
}

/// Formats a ratio.
pub(crate) fn times(ratio: f64) -> String {
    format!("{} ×", digits(ratio))
}

fn digits(value: f64) -> String {
    // A value that rounds up to the next power of ten gets one digit less after the point.
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_medians_are_those_of_sorted_values() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99), Some(99.0));
        assert_eq!((percentile(&[3.0, 7.0], 50), percentile(&[], 99)), (Some(3.0), None));
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).map(|s| (s.least, s.median, s.most));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn numbers_are_written_with_three_digits_in_a_unit_of_their_size() {
        for (value, unit, expected) in [
            (87_757.0, Unit::Kibibytes, "85.7 MiB"),
            (0.0, Unit::Seconds, "0.00 s"),
            (0.099_96, Unit::Seconds, "100 ms"),
            (0.009_999, Unit::Seconds, "10.0 ms"),
            (42.4e-6, Unit::Seconds, "42.4 µs"),
        ] {
            assert_eq!(written(value, unit), expected);
        }
    }
}
