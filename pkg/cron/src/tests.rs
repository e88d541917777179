mod model;
mod past;
mod vectors;

use expect_test::expect;
use proptest::prelude::*;

use super::*;

const CRONTAB: Dialect<'static> = Dialect::CronTab {
    uid: "0d1b3a5c-9f0e-4c61-8a53-5d2f7c1e9b44",
};

fn runs(expression: &str, zone: &str, from: &str, policy: DstPolicy) -> Vec<String> {
    let schedule = Schedule::parse(expression, CRONTAB).unwrap();
    let zone = TimeZone::get(zone).unwrap();
    let mut at: Timestamp = from.parse().unwrap();
    let mut runs = Vec::new();
    while let Some(next) = schedule.next(at, &zone, policy).filter(|_| runs.len() < 3) {
        runs.push(next.to_zoned(zone.clone()).strftime("%m-%d %H:%M%:z").to_string());
        at = next;
    }
    runs
}

fn once(expression: &str, zone: &str, from: &str) -> Vec<String> {
    runs(expression, zone, from, DstPolicy::Once)
}

#[test]
fn fixed_hour_runs_once_when_the_clock_jumps_forward() {
    // In Berlin the clock jumps from 02:00 to 03:00 on 29 March.
    let from = "2026-03-28T12:00:00Z";
    assert_eq!(
        once("30 2 * * *", "Europe/Berlin", from),
        ["03-29 03:00+02:00", "03-30 02:30+02:00", "03-31 02:30+02:00"]
    );
    let in_gap = once("0,15,30,45 2 * * *", "Europe/Berlin", from);
    assert_eq!(
        in_gap,
        ["03-29 03:00+02:00", "03-30 02:00+02:00", "03-30 02:15+02:00"],
        "all runs in a gap become one run"
    );
    assert_eq!(
        once("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z"),
        ["11-04 01:00-02:00", "11-05 00:00-02:00", "11-06 00:00-02:00"]
    );
    assert_eq!(
        once("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T10:00:00Z")[0],
        "10-04 02:30+11:00",
        "a gap of half an hour"
    );
}

#[test]
fn fixed_hour_runs_once_when_the_clock_goes_back() {
    // In Berlin the hour from 02:00 to 03:00 occurs twice on 25 October.
    assert_eq!(
        once("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z"),
        ["10-25 02:30+02:00", "10-26 02:30+01:00", "10-27 02:30+01:00"]
    );
    // A start within the second occurrence does not go back to the first.
    assert_eq!(
        once("45 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z")[0],
        "10-26 02:45+01:00"
    );
}

#[test]
fn wildcard_hours_follow_real_time() {
    for expression in ["30 * * * *", "30 */1 * * *", "30 0-23/1 * * *", "30 ? * * *"] {
        assert_eq!(
            once(expression, "Europe/Berlin", "2026-10-25T00:00:00Z"),
            ["10-25 02:30+02:00", "10-25 02:30+01:00", "10-25 03:30+01:00"],
            "{expression}"
        );
    }
}

#[test]
fn search_continues_past_a_day_that_the_zone_skipped() {
    // Samoa skipped 30 December 2011.
    for policy in [DstPolicy::Kubernetes, DstPolicy::Once] {
        let runs = runs("0 12 31 12 *", "Pacific/Apia", "2011-12-29T12:00:00Z", policy);
        assert_eq!(runs[0], "12-31 12:00+14:00", "{policy:?}");
    }
    assert_eq!(
        once("0 12 30 12 *", "Pacific/Apia", "2011-12-29T12:00:00Z")[0],
        "12-31 00:00+14:00"
    );
}

#[test]
fn search_continues_when_a_walk_returns_to_its_start() {
    // In 1990 the clock in St. John's went back at 00:01, to 23:01 of the previous day, so stepping
    // minutes leads into the wrong hour.
    assert_eq!(
        runs(
            "1 0 * * *",
            "America/St_Johns",
            "1990-10-27T12:00:00Z",
            DstPolicy::Kubernetes
        ),
        ["10-27 23:01-03:30", "10-28 00:01-03:30", "10-29 00:01-03:30"]
    );
}

/// These values must not change. With another hash, the runs of all users would move.
#[test]
fn h_values_depend_on_the_uid_and_never_change() {
    let fields = |text| match Schedule::parse(text, CRONTAB).unwrap().recurrence {
        Recurrence::Fields(fields) => fields,
        Recurrence::Every(_) => unreachable!("{text} has fields"),
    };
    let values = |set: u64| (0..64).filter(|value| set >> value & 1 == 1).collect::<Vec<u32>>();
    let all = fields("H H H H H");
    let golden = format!(
        "{:?} {:?} {:?} {:?} {:?}\n{:?}\n{:?}\n{:?}\n",
        values(all.minutes),
        values(all.hours),
        values(all.days_of_month),
        values(all.months),
        values(all.days_of_week),
        values(fields("H(0-29) * * * *").minutes),
        values(fields("H/15 * * * *").minutes),
        values(fields("H(10-40)/10 * * * *").minutes),
    );
    expect![[r"
        [39] [8] [2] [11] [0]
        [9]
        [9, 24, 39, 54]
        [19, 29, 39]
    "]]
    .assert_eq(&golden);
    assert!(
        Schedule::parse("H H * * *", Dialect::Kubernetes).is_err(),
        "CronJob does not support H"
    );
}

#[test]
fn errors_name_the_field_and_say_what_to_write_instead() {
    let expected = expect![[r#"
        "": the schedule is empty: write five fields (minute, hour, day of month, month, day of week) or a descriptor such as @daily
        "0 0 * *": found 4 fields in "0 0 * *", not 5: minute, hour, day of month, month, day of week (no seconds)
        "60 * * * *": invalid minute "60": must be from 0 to 59
        "0 0 * * 7": invalid day of week "7": must be from 0 to 6
        "0 0 * * monday": invalid day of week "monday": must be from 0 to 6 (0 is Sunday), or SUN to SAT
        "0 9-5 * * *": invalid hour "9-5": the range ends before it begins; write it in ascending order within 0 to 23
        "*/0 * * * *": invalid minute "*/0": the step must be 1 or more
        "0 0 1-2-3 * *": invalid day of month "1-2-3": it has more than one -
        "H(5) * * * *": invalid minute "H(5)": write H, H(a-b), H/n or H(a-b)/n
        "0 0 H(1-31) * *": invalid day of month "H(1-31)": must be from 1 to 28
        "@Daily": unknown descriptor "@Daily": use @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly (in lower case), or @every followed by a duration
        "@every 5": invalid @every duration "5": write a duration such as 90s, 1h30m or 1.5h, with the units h, m, s, ms, us or ns
        "@every 59s": invalid @every duration "59s": must be at least one minute, because a CronTab runs at most once a minute
        "TZ=Europe/Berlin 0 0 * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead
    "#]];
    let texts = [
        "",
        "0 0 * *",
        "60 * * * *",
        "0 0 * * 7",
        "0 0 * * monday",
        "0 9-5 * * *",
        "*/0 * * * *",
        "0 0 1-2-3 * *",
        "H(5) * * * *",
        "0 0 H(1-31) * *",
        "@Daily",
        "@every 5",
        "@every 59s",
        "TZ=Europe/Berlin 0 0 * * *",
    ];
    let line = |text: &str| format!("{text:?}: {}\n", Schedule::parse(text, CRONTAB).unwrap_err());
    expected.assert_eq(&texts.map(line).concat());
}

#[test]
fn explain_describes_the_schedule_in_a_sentence() {
    let explain = |text| Schedule::parse(text, Dialect::Kubernetes).unwrap().explain(None);
    let table = [
        ("* * * * *", "Every minute, every day."),
        ("*/5 * * * *", "Every 5 minutes, every day."),
        ("30 * * * *", "At minute 30 of every hour, every day."),
        ("30 2 * * *", "At 02:30, every day."),
        ("0 9,17 * * 1-5", "At 09:00 and 17:00, on Monday through Friday."),
        ("0 0 13 * 5", "At 00:00, on day 13 of the month or on Friday."),
        (
            "0 0 */2 * 1",
            "At 00:00, on day 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29 and 31 of the month or on Monday.",
        ),
        (
            "*/10 9-17 * 1,2,12 *",
            "Every 10 minutes of hour 9 through 17, every day, in January, February and December.",
        ),
        ("@yearly", "At 00:00, on day 1 of the month, in January."),
        ("@every 1h30m", "Every 1h 30m, counted from the last run."),
        (
            "TZ=Asia/Tokyo 0 9 * * *",
            "At 09:00, every day, in the time zone Asia/Tokyo.",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(explain(text), expected, "{text}");
    }
}

proptest! {
    /// In a zone whose clock never changes, the policy makes no difference.
    #[test]
    fn policies_agree_in_a_zone_without_clock_changes(
        minute in 0..60, hour in 0..24, day in 1..32, second in 0_i64..4_000_000_000,
    ) {
        let schedule = Schedule::parse(&format!("{minute} {hour} {day} * *"), CRONTAB).unwrap();
        let after = Timestamp::from_second(second).unwrap();
        let zone = TimeZone::get("Asia/Kolkata").unwrap();
        let next = |policy| schedule.next(after, &zone, policy);
        prop_assert_eq!(next(DstPolicy::Once), next(DstPolicy::Kubernetes));
    }
}
