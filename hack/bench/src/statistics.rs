//! Percentiles, medians and number formatting. Pure.

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
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], upper)
        } else {
            upper
        };
        Some(Self {
            least: *sorted.first()?,
            median,
            most: *sorted.last()?,
        })
    }
}

/// The unit in which a number is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unit {
    Count,
    /// Memory as the kernel reports it, formatted in MiB.
    Kibibytes,
    Seconds,
    Bytes,
    PerSecond,
    /// A multiple of another number.
    Ratio,
}

/// Formats a number with three significant digits in a unit that suits its size.
pub(crate) fn written(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Count => format!("{value:.0}"),
        Unit::Ratio => times(value),
        Unit::Bytes => format!("{value:.0} B"),
        Unit::PerSecond if value >= 1e6 => format!("{} M/s", digits(value / 1e6)),
        Unit::PerSecond if value >= 1e4 => format!("{} k/s", digits(value / 1e3)),
        Unit::PerSecond => format!("{value:.0}/s"),
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

/// Returns `value` divided by `reference`, or `None` when `reference` is not positive.
pub(crate) fn ratio(value: f64, reference: f64) -> Option<f64> {
    (reference > 0.0).then(|| value / reference)
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
    fn a_percentile_is_the_value_of_the_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        for (percent, expected) in [(1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)] {
            assert_eq!(percentile(&hundred, percent), Some(expected), "p{percent}");
        }
        let five_hundred: Vec<f64> = (1..=500).map(f64::from).collect();
        assert_eq!(percentile(&five_hundred, 99), Some(495.0));
        assert_eq!(percentile(&[3.0, 7.0], 50), Some(3.0));
        assert_eq!(percentile(&[3.0], 99), Some(3.0));
        assert_eq!(percentile(&[], 99), None);
    }

    #[test]
    fn a_spread_has_the_median_between_the_least_and_the_most() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied()).map(|s| (s.least, s.median, s.most));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[5.0]), Some((5.0, 5.0, 5.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn numbers_are_written_with_three_digits_in_a_unit_of_their_size() {
        for (value, unit, expected) in [
            (500.0, Unit::Count, "500"),
            (87_757.0, Unit::Kibibytes, "85.7 MiB"),
            (262_144.0, Unit::Kibibytes, "256 MiB"),
            (0.0, Unit::Seconds, "0.00 s"),
            (75.31, Unit::Seconds, "75.3 s"),
            (1.834, Unit::Seconds, "1.83 s"),
            (0.1126, Unit::Seconds, "113 ms"),
            (0.099_96, Unit::Seconds, "100 ms"),
            (0.009_999, Unit::Seconds, "10.0 ms"),
            (42.4e-6, Unit::Seconds, "42.4 µs"),
            (137.2e-9, Unit::Seconds, "137 ns"),
            (183.4, Unit::Bytes, "183 B"),
            (1_234_567.0, Unit::PerSecond, "1.23 M/s"),
            (500_000.0, Unit::PerSecond, "500 k/s"),
            (950.0, Unit::PerSecond, "950/s"),
        ] {
            assert_eq!(written(value, unit), expected);
        }
    }

    #[test]
    fn a_ratio_needs_something_to_compare_with() {
        assert_eq!(ratio(3.0, 2.0).map(times).as_deref(), Some("1.50 ×"));
        assert_eq!(ratio(1.0, 80.0).map(times).as_deref(), Some("0.013 ×"));
        assert_eq!(ratio(3.0, 0.0), None);
    }
}
