//! Properties that hold for every input. The fuzz targets check them, and so does a test on the
//! corpus and mutations of it.
#![allow(dead_code, reason = "each fuzz target checks only one property")]

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use portreeve_cron::{Dialect, DstPolicy, Schedule};

const POLICIES: [DstPolicy; 2] = [DstPolicy::Once, DstPolicy::Kubernetes];
const UIDS: [&str; 3] = ["", "0d1b3a5c-9f0e-4c61-8a53-5d2f7c1e9b44", "\u{fe0f}"];
/// The maximum span in seconds of a search for the latest run. It is longer than a search for the
/// next run looks ahead.
const MAX_SPAN_SECONDS: i64 = 8 * 365 * 86_400;

fn dialects() -> impl Iterator<Item = Dialect<'static>> {
    let crontabs = UIDS.into_iter().map(|uid| Dialect::CronTab { uid });
    std::iter::once(Dialect::Kubernetes).chain(crontabs)
}

/// Checks the input as an expression.
pub(crate) fn parse(input: &[u8]) {
    let text = &*String::from_utf8_lossy(input);
    let after = Timestamp::UNIX_EPOCH;
    for dialect in dialects() {
        match Schedule::parse(text, dialect) {
            Ok(schedule) => {
                assert!(
                    schedule.explain(None).ends_with('.'),
                    "the description of {text:?} is no sentence"
                );
                runs(&schedule, after, MAX_SPAN_SECONDS, &TimeZone::UTC);
                stays_in_range(text, &schedule, dialect);
            }
            Err(error) => {
                let message = error.to_string();
                assert!(!message.is_empty(), "the error for {text:?} has no message");
                assert!(
                    !message.contains(char::is_control),
                    "the error for {text:?} has control characters: {message:?}"
                );
            }
        }
    }
}

/// Checks the input as four lines: an expression, a zone, a start and a number of seconds. The last
/// three are optional.
pub(crate) fn next(input: &[u8]) {
    let input = String::from_utf8_lossy(input);
    let mut lines = input.lines();
    let text = lines.next().unwrap_or_default();
    let Ok(zone) = portreeve_cron::load_zone(lines.next().unwrap_or_default()) else {
        return;
    };
    let after = lines.next().unwrap_or("2026-03-28T12:00:00Z");
    let second = after
        .parse()
        .ok()
        .and_then(|second| Timestamp::from_second(second).ok());
    let Some(after) = second.or_else(|| after.parse().ok()) else {
        return;
    };
    let seconds = lines.next().and_then(|seconds| seconds.parse().ok()).unwrap_or(86_400);
    for dialect in dialects().take(2) {
        if let Ok(schedule) = Schedule::parse(text, dialect) {
            runs(&schedule, after, seconds, &zone);
        }
    }
}

/// Checks that the next run is later than the start, and that repeated calls of `next` end at the
/// latest run.
fn runs(schedule: &Schedule, after: Timestamp, seconds: i64, zone: &TimeZone) {
    let span = SignedDuration::from_secs(seconds.clamp(-MAX_SPAN_SECONDS, MAX_SPAN_SECONDS));
    let until = after.saturating_add(span).unwrap_or(after);
    for policy in POLICIES {
        let next = schedule.next(after, zone, policy);
        assert!(next.is_none_or(|next| next > after), "{next:?} is not after {after}");
        let latest = schedule.latest(after, until, zone, policy);
        let count = schedule.count(after, until, zone, policy, 3);
        assert_eq!(
            latest.is_some(),
            count > 0,
            "there are {count} runs, but the latest is {latest:?}"
        );
        assert!(count <= 3, "{count} is over the limit");
        let Some(latest) = latest else {
            let due = next.filter(|next| *next <= until);
            assert_eq!(due, None, "there is no latest run up to {until}, but a next one");
            continue;
        };
        assert!(
            after < latest && latest <= until,
            "{latest} is not within {after} and {until}"
        );
        let following = schedule.next(latest, zone, policy);
        assert!(
            following.is_none_or(|next| next > until),
            "{following:?} is a run between {latest} and {until}"
        );
        if count < 3 {
            walks_to(schedule, after, latest, zone, policy, count);
        }
    }
}

/// Checks that `runs` calls of `next` lead from `from` to `to`, unless `next` finds no run within
/// five years.
fn walks_to(schedule: &Schedule, from: Timestamp, to: Timestamp, zone: &TimeZone, policy: DstPolicy, runs: u32) {
    let walked = (0..runs).try_fold(from, |at, _| schedule.next(at, zone, policy));
    assert!(
        walked.is_none_or(|walked| walked == to),
        "{walked:?} is not {to}, {runs} runs after {from}"
    );
}

/// Checks that an expression with `H` runs only at times that its ranges allow.
fn stays_in_range(text: &str, schedule: &Schedule, dialect: Dialect<'_>) {
    let Some(ranges) = without_hash(text) else { return };
    let Ok(ranges) = Schedule::parse(&ranges, Dialect::Kubernetes) else {
        return;
    };
    let (zone, policy) = (TimeZone::UTC, DstPolicy::Kubernetes);
    let mut at = Timestamp::UNIX_EPOCH;
    for _ in 0..4 {
        let Some(next) = schedule.next(at, &zone, policy) else {
            return;
        };
        let before = next.saturating_sub(SignedDuration::from_secs(1)).unwrap_or(next);
        let allowed = ranges.next(before, &zone, policy);
        assert_eq!(
            allowed,
            Some(next),
            "{text:?} runs outside its ranges under {dialect:?}"
        );
        at = next;
    }
}

/// Returns the expression with each `H` replaced by the range of its possible values.
fn without_hash(text: &str) -> Option<String> {
    if text.starts_with(['@', 'T', 'C']) {
        return None;
    }
    let ranges = ["0-59", "0-23", "1-28", "1-12", "0-6"];
    let fields = text.split_whitespace().zip(ranges).map(|(field, range)| {
        let items = field.split(',').map(|item| {
            let Some(hashed) = item.strip_prefix('H') else {
                return item.to_owned();
            };
            let (within, _) = hashed.split_once('/').unwrap_or((hashed, ""));
            if within.is_empty() {
                range.to_owned()
            } else {
                within.trim_matches(['(', ')']).to_owned()
            }
        });
        items.collect::<Vec<_>>().join(",")
    });
    Some(fields.collect::<Vec<_>>().join(" "))
}
