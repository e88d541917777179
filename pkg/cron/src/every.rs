//! `@every`: parses durations in Go's syntax and computes the runs.

use jiff::{SignedDuration, Timestamp};

use crate::Error;

const NOT_A_DURATION: &str = "write a duration such as 90s, 1h30m or 1.5h, with the units h, m, s, ms, us or ns";

/// Returns the period in whole seconds. As in robfig/cron, fractions are truncated and the minimum
/// is one second.
pub(crate) fn period(text: &str) -> Result<SignedDuration, Error> {
    let nanoseconds = duration_nanoseconds(text).ok_or_else(|| Error::Every {
        value: text.to_owned(),
        reason: NOT_A_DURATION,
    })?;
    Ok(SignedDuration::from_secs((nanoseconds / 1_000_000_000).max(1)))
}

/// Returns the run that follows a run at `after`, on a whole second.
pub(crate) fn next(period: SignedDuration, after: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(second(after) + period.as_secs()).ok()
}

/// Returns the last run up to `until`, if the previous run was at `after`.
pub(crate) fn latest(period: SignedDuration, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
    let (first, last) = (second(after), second(until));
    let passed = (last - first) / period.as_secs() * period.as_secs();
    let run = Timestamp::from_second(first + passed).ok()?;
    (passed > 0).then_some(run)
}

/// Returns the whole second that contains `at`.
pub(crate) fn second(at: Timestamp) -> i64 {
    // Before 1970 the fraction of a second is negative.
    at.as_second() - i64::from(at.subsec_nanosecond() < 0)
}

/// Parses a duration in Go's syntax and returns nanoseconds: an optional sign, then numbers with
/// units. A bare 0 needs no unit.
fn duration_nanoseconds(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after
            .find(|c: char| c == '.' || c.is_ascii_digit())
            .unwrap_or(after.len());
        let unit = unit(&after[..end])?;
        rest = &after[end..];
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit)?)?;
        total = total.checked_add(fraction_of_unit(fraction, unit))?;
    }
    Some(if negative { -total } else { total })
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit(text: &str) -> Option<i64> {
    Some(match text {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Returns `0.fraction` of a unit, in nanoseconds. Digits after the 18th have no effect, because
/// the largest unit has less than 10^18 nanoseconds.
fn fraction_of_unit(fraction: &str, unit: i64) -> i64 {
    let digits = &fraction[..fraction.len().min(18)];
    let Ok(number) = digits.parse::<i128>() else { return 0 };
    let scale = 10_i128.pow(u32::try_from(digits.len()).unwrap_or(0));
    i64::try_from(number * i128::from(unit) / scale).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_in_go() {
        let seconds = |text| period(text).map(|period| period.as_secs()).ok();
        let table = [
            ("5m", Some(300)),
            ("1h30m10s", Some(5_410)),
            ("1.5h", Some(5_400)),
            (".5h", Some(1_800)),
            ("1.h", Some(3_600)),
            ("+90s", Some(90)),
            ("100ms", Some(1)),
            ("1500ms", Some(1)),
            ("2500ms", Some(2)),
            ("0", Some(1)),
            ("-5m", Some(1)),
            ("1h1h", Some(7_200)),
            ("", None),
            ("5", None),
            ("m", None),
            (".s", None),
            ("5 m", None),
            ("1d", None),
            ("1 hour", None),
            ("9999999999h", None),
        ];
        for (text, expected) in table {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn next_run_is_on_a_whole_second() {
        let after: Timestamp = "2026-03-10T12:34:56.7Z".parse().unwrap();
        let next = next(SignedDuration::from_secs(5), after).unwrap();
        assert_eq!(next.to_string(), "2026-03-10T12:35:01Z");
    }
}
