use jiff::{SignedDuration, tz::TimeZoneDatabase};
use proptest::{prelude::*, sample::select};

use super::*;
use crate::parse::find_zone;

pub(super) const ZONES: [&str; 16] = [
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "America/Anchorage",
    "America/Asuncion",
    "America/Havana",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Tehran",
    "Atlantic/Azores",
];

/// Returns all runs later than `after` and up to `until`, found one by one with `next`.
fn repeated_next(
    schedule: &Schedule,
    after: Timestamp,
    until: Timestamp,
    zone: &TimeZone,
    policy: DstPolicy,
) -> Vec<Timestamp> {
    let mut at = after;
    let mut runs = Vec::new();
    while at < until {
        match schedule.next(at, zone, policy) {
            Some(next) if next <= until => runs.push(next),
            Some(_) => break,
            None => {
                at = at.saturating_add(search::MIN_SEARCH_SPAN).unwrap();
                continue;
            }
        }
        at = runs[runs.len() - 1];
    }
    runs
}

/// Generates a field of an expression: often a star, rarely a list.
fn field(min: u32, max: u32) -> impl Strategy<Value = String> {
    let pair = (min..=max, min..=max, 1..=max);
    prop_oneof![
        2 => Just("*".to_owned()),
        2 => (min..=max).prop_map(|value| value.to_string()),
        1 => pair.clone().prop_map(|(a, b, _)| format!("{a},{b}")),
        1 => pair.clone().prop_map(|(a, b, _)| format!("{}-{}", a.min(b), a.max(b))),
        1 => pair.clone().prop_map(|(a, b, step)| format!("{}-{}/{step}", a.min(b), a.max(b))),
        1 => pair.prop_map(|(.., step)| format!("*/{step}")),
    ]
}

pub(super) fn expression() -> impl Strategy<Value = String> {
    let fields = (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6));
    prop_oneof![
        9 => fields.prop_map(|(minute, hour, day, month, weekday)| format!("{minute} {hour} {day} {month} {weekday}")),
        1 => (60_u32..2_000_000).prop_map(|seconds| format!("@every {seconds}s")),
    ]
}

proptest! {
    /// `latest` and `count` agree with repeated calls of `next`, over any distance and any change
    /// of the clock.
    #[test]
    fn latest_and_count_agree_with_repeated_next(
        text in expression(),
        zone in select(&ZONES[..]),
        // From 1905 to 2096, in nanoseconds.
        after in -2_050_000_000_000_000_000_i128..4_000_000_000_000_000_000,
        days in prop_oneof![1_i64..3, 1_i64..400, 1_i64..8_000],
        minutes in 0_i64..1_440,
        limit in 0_u32..2_000,
    ) {
        let schedule = Schedule::parse(&text, CRONTAB).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let after = Timestamp::from_nanosecond(after).unwrap();
        for policy in [DstPolicy::Once, DstPolicy::Kubernetes] {
            // Limit the number of runs to about two thousand.
            let a_day_later = after + SignedDuration::from_hours(24);
            let runs_per_day = repeated_next(&schedule, after, a_day_later, &zone, policy).len();
            let days = days % (2_000 / i64::try_from(runs_per_day + 1).unwrap());
            let until = after + SignedDuration::from_mins(days * 1_440 + minutes);
            let runs = repeated_next(&schedule, after, until, &zone, policy);
            prop_assert_eq!(schedule.latest(after, until, &zone, policy), runs.last().copied());
            let count = u32::try_from(runs.len()).unwrap();
            prop_assert_eq!(schedule.count(after, until, &zone, policy, limit), count.min(limit));
        }
    }

    /// The same around changes of the clock.
    #[test]
    fn latest_agrees_with_repeated_next_near_changes_of_the_clock(
        text in expression(),
        zone in select(&ZONES[..]),
        change in 0_usize..60,
        before in 0_i64..3_000,
        offset in -1_500_i64..1_500,
    ) {
        let schedule = Schedule::parse(&text, CRONTAB).unwrap();
        let zone = TimeZone::get(zone).unwrap();
        let first = Timestamp::from_second(-2_200_000_000).unwrap();
        let change = zone.following(first).nth(change).map_or(first, |change| change.timestamp());
        let until = change + SignedDuration::from_mins(offset);
        let after = change - SignedDuration::from_mins(before);
        for policy in [DstPolicy::Once, DstPolicy::Kubernetes] {
            let runs = repeated_next(&schedule, after, until, &zone, policy);
            prop_assert_eq!(schedule.latest(after, until, &zone, policy), runs.last().copied());
        }
    }
}

#[test]
fn zone_names_are_case_sensitive() {
    for name in ["UTC", "Europe/Berlin", "Etc/GMT+5"] {
        assert_eq!(load_zone(name).unwrap().iana_name(), Some(name));
    }
    assert_eq!(load_zone("").unwrap().iana_name(), Some("UTC"));
    for name in [
        "Local",
        "local",
        "utc",
        "europe/berlin",
        "Europe/berlin",
        "Etc/Unknown",
        "Europe/Berlin ",
        "../UTC",
        "Mars/Base",
    ] {
        let error = load_zone(name).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// Debian has US/Central in a package of its own.
#[test]
fn a_zone_that_the_host_lacks_is_found_in_the_binary() {
    let (empty, whole) = (TimeZoneDatabase::none(), TimeZoneDatabase::bundled());
    for (name, databases, is_found) in [
        ("US/Central", [&empty, &whole], true),
        ("US/Central", [&whole, &empty], true),
        ("US/Central", [&empty, &empty], false),
        ("us/central", [&empty, &whole], false),
    ] {
        let found = find_zone(name, databases);
        assert_eq!(found.is_some(), is_found, "{name}");
    }
    assert!(load_zone("US/Central").is_ok());
}
