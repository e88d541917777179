//! Measures the search for the next and the latest run, and the parsing of an expression.
//!
//! The targets for the next run are at most 100 ns for a frequent schedule, 5 µs for a rare one,
//! and 10 µs for one without runs.

#![expect(clippy::expect_used, reason = "the inputs are constants")]

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use jiff::{Timestamp, tz::TimeZone};
use portreeve_cron::{Dialect, DstPolicy, Schedule};

const FREQUENT: &str = "*/5 * * * *";
const DAILY: &str = "30 2 * * *";
const RARE: &str = "0 0 29 2 *";
const NEVER: &str = "0 0 31 2 *";
const POLICIES: [DstPolicy; 2] = [DstPolicy::Once, DstPolicy::Kubernetes];

fn schedule(expression: &str) -> Schedule {
    Schedule::parse(expression, Dialect::Kubernetes).expect("the expression is a schedule")
}

fn zones() -> [(&'static str, TimeZone); 2] {
    ["UTC", "Europe/Berlin"].map(|name| (name, portreeve_cron::load_zone(name).expect("the zone is known")))
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("the text is a time")
}

fn next(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("next");
    let after = time("2026-03-10T12:34:56Z");
    for (name, zone) in zones() {
        for expression in [FREQUENT, DAILY, RARE, NEVER] {
            let schedule = schedule(expression);
            for policy in POLICIES {
                group.bench_function(format!("{expression} {name} {policy:?}"), |bencher| {
                    bencher.iter(|| schedule.next(black_box(after), &zone, policy));
                });
            }
        }
    }
}

/// Searches across a change of the clock, where the search steps as robfig/cron does and is
/// slowest.
fn change(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("next over a change");
    let after = time("2026-03-28T23:00:00Z");
    let [_, (name, zone)] = zones();
    for expression in [FREQUENT, DAILY] {
        let schedule = schedule(expression);
        for policy in POLICIES {
            group.bench_function(format!("{expression} {name} {policy:?}"), |bencher| {
                bencher.iter(|| schedule.next(black_box(after), &zone, policy));
            });
        }
    }
}

fn latest(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("latest");
    let until = time("2026-03-10T12:34:56Z");
    for (name, zone) in zones() {
        for (away, after) in [
            ("an hour", "2026-03-10T11:34:56Z"),
            ("ten years", "2016-03-10T12:34:56Z"),
        ] {
            let after = time(after);
            for expression in ["* * * * *", DAILY, RARE, NEVER] {
                let schedule = schedule(expression);
                for policy in POLICIES {
                    group.bench_function(format!("{expression} {name} {policy:?} {away} back"), |bencher| {
                        bencher.iter(|| schedule.latest(black_box(after), until, &zone, policy));
                    });
                }
            }
        }
    }
}

fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    let dialect = Dialect::CronTab {
        uid: "0d1b3a5c-9f0e-4c61-8a53-5d2f7c1e9b44",
    };
    for expression in [
        "* * * * *",
        "H(0-29)/10 8-18 1,15 JAN-JUN MON-FRI",
        "@every 1h30m",
        "60 * * * *",
    ] {
        group.bench_function(expression, |bencher| {
            bencher.iter(|| Schedule::parse(black_box(expression), dialect));
        });
    }
}

criterion_group!(benches, next, change, latest, parse);
criterion_main!(benches);
