//! Compares results with recorded results of Kubernetes' parser, robfig/cron v3: 75 chosen lines,
//! and 3,000 random ones with a bias towards changes of the clock.
//!
//! Each line is `zone|from|expression|next three runs in UTC`. `ERR` means that the expression is
//! invalid, `NEVER` that it has no run within five years.

use crate::{Dialect, DstPolicy, Schedule};
use jiff::{Timestamp, tz::TimeZone};

fn next_runs(zone: &str, from: &str, expression: &str) -> String {
    let zone = TimeZone::get(zone).unwrap();
    let Ok(schedule) = Schedule::parse(expression, Dialect::Kubernetes) else {
        return "ERR".to_owned();
    };
    let mut at: Timestamp = from.parse().unwrap();
    let mut runs = Vec::new();
    while let Some(next) = schedule
        .next(at, &zone, DstPolicy::Kubernetes)
        .filter(|_| runs.len() < 3)
    {
        assert!(next > at, "{expression}: {next} is not after {at}");
        runs.push(next.to_string());
        at = next;
    }
    if runs.is_empty() {
        "NEVER".to_owned()
    } else {
        runs.join(",")
    }
}

fn check(vectors: &str) {
    let mut wrong = Vec::new();
    for line in vectors
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let [zone, from, expression, expected] = line.split('|').collect::<Vec<_>>().try_into().unwrap();
        let actual = next_runs(zone, from, expression);
        if actual != expected {
            wrong.push(format!("{line}\n    but: {actual}"));
        }
    }
    assert!(wrong.is_empty(), "{} lines differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn chosen_vectors_match() {
    check(include_str!("../../vectors/cron-corpus.txt"));
}

#[test]
fn random_vectors_match() {
    check(include_str!("../../vectors/cron-random.txt"));
}
