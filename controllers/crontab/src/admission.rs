//! The webhook of CronTabs: what the definition cannot express, because it needs to parse a
//! schedule or to know time zones.
//!
//! Only a changed field is rejected, so that a CronTab that was stored without the webhook can
//! still be changed.
//!
//! Architecture Invariant: pure. The time is an argument.

use std::cmp::Ordering;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use portreeve_api::{CRONTAB_POLICIES, CRONTABS, DstPolicyName};
use portreeve_cron::{Dialect, DstPolicy, Schedule, load_zone};
use portreeve_reconcile::admission::{FieldError, Review, Verdict, Webhook};
use serde::Deserialize;

use crate::conversion;

/// The name of both webhooks, which have a path each.
const WEBHOOK: &str = "crontabs.stable.example.com";
const SCHEDULE: &str = "spec.schedule";
/// A day in seconds.
const DAY: i64 = 24 * 60 * 60;
/// The number of days with runs among which two in a row are searched: those of five years.
const SEARCHED_DAYS: usize = 5 * 366;
/// How far ahead changes of the clock are searched.
const CLOCK_CHANGES_WITHIN: SignedDuration = SignedDuration::from_hours(366 * 24);
/// Longer than any change of the clock.
const AROUND_A_CHANGE: SignedDuration = SignedDuration::from_hours(25);

/// The fields of a CronTab that are reviewed.
#[derive(Deserialize)]
struct ReviewedCronTab {
    #[serde(default)]
    metadata: ReviewedMetadata,
    spec: Option<ReviewedSpec>,
}

#[derive(Default, Deserialize)]
struct ReviewedMetadata {
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct ReviewedSpec {
    schedule: String,
    time_zone: Option<String>,
    #[serde(default)]
    dst_policy: DstPolicyName,
    starting_deadline_seconds: Option<i64>,
}

/// The fields of a `CronTabPolicy` that the webhook checks. The apiserver checks the others.
#[derive(Deserialize)]
struct Policy {
    metadata: PolicyMetadata,
    spec: PolicySpec,
}

#[derive(Deserialize)]
struct PolicyMetadata {
    name: String,
}

#[derive(Deserialize)]
struct PolicySpec {
    limits: Option<Limits>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    min_interval_seconds: Option<i64>,
}

pub(crate) fn webhooks() -> Vec<Webhook> {
    vec![
        Webhook::validating(WEBHOOK, CRONTABS, validate).with_parameters(CRONTAB_POLICIES),
        Webhook::converting(WEBHOOK, CRONTABS, conversion::convert),
    ]
}

fn validate(review: &Review<'_, ReviewedCronTab>) -> Verdict {
    let Some(spec) = &review.new.spec else {
        return Verdict::new();
    };
    let old = review.old.as_ref().and_then(|old| old.spec.as_ref());
    if old == Some(spec) {
        return Verdict::new();
    }
    let uid = &review.new.metadata.uid;
    let schedule = Schedule::parse(&spec.schedule, Dialect::CronTab { uid })
        .map_err(|error| FieldError::invalid(SCHEDULE, &spec.schedule, error));
    let name = spec.time_zone.as_deref().unwrap_or_default();
    let zone = load_zone(name).map_err(|error| FieldError::invalid("spec.timeZone", name, error));
    let is_rescheduled = old.is_none_or(|old| old.schedule != spec.schedule);
    let is_moved = old.is_none_or(|old| old.time_zone != spec.time_zone);
    match (schedule, zone) {
        (Ok(schedule), Ok(zone)) => {
            // Nobody has checked a schedule whose time zone was unknown.
            let was_unknown = old.is_some_and(|old| load_zone(old.time_zone.as_deref().unwrap_or_default()).is_err());
            let errors = if is_rescheduled || was_unknown {
                rejections(review, spec, &schedule, &zone)
            } else {
                Vec::new()
            };
            let warnings = warnings(review, spec, &schedule, &zone);
            Verdict { errors, warnings }
        }
        (schedule, zone) => {
            let schedule = schedule.err().filter(|_| is_rescheduled);
            let zone = zone.err().filter(|_| is_moved);
            Verdict {
                errors: schedule.into_iter().chain(zone).collect(),
                warnings: Vec::new(),
            }
        }
    }
}

/// Returns why a schedule that can be parsed is rejected.
fn rejections(
    review: &Review<'_, ReviewedCronTab>,
    spec: &ReviewedSpec,
    schedule: &Schedule,
    zone: &TimeZone,
) -> Vec<FieldError> {
    if schedule.next(review.now, zone, policy(spec)).is_none() {
        let message = "it never runs: no day within five years matches all fields";
        return vec![FieldError::invalid(SCHEDULE, &spec.schedule, message)];
    }
    violations(review, spec, schedule)
}

/// Returns what the user should know about a CronTab that can run.
fn warnings(
    review: &Review<'_, ReviewedCronTab>,
    spec: &ReviewedSpec,
    schedule: &Schedule,
    zone: &TimeZone,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if review.parameters.is_none() {
        warnings.push("spec.schedule: the minimum interval of the namespace was not checked".to_owned());
    }
    if spec.starting_deadline_seconds == Some(0) {
        warnings.push("spec.startingDeadlineSeconds: with 0, no run ever starts in time".to_owned());
    }
    if policy(spec) == DstPolicy::Kubernetes {
        warnings.extend(clock_change(schedule, zone, review.now));
    }
    warnings
}

fn policy(spec: &ReviewedSpec) -> DstPolicy {
    match spec.dst_policy {
        DstPolicyName::Once => DstPolicy::Once,
        DstPolicyName::Kubernetes => DstPolicy::Kubernetes,
    }
}

/// Returns an error for each policy of the namespace whose minimum interval is longer than the
/// shortest interval of the schedule.
fn violations(review: &Review<'_, ReviewedCronTab>, spec: &ReviewedSpec, schedule: &Schedule) -> Vec<FieldError> {
    let minimums = review.parameters::<Policy>().filter_map(|policy| {
        let minimum = policy.spec.limits?.min_interval_seconds?;
        Some((policy.metadata.name, minimum))
    });
    let minimums: Vec<_> = minimums.collect();
    if minimums.is_empty() {
        return Vec::new();
    }
    let Some(shortest) = shortest_interval(&spec.schedule, schedule, review.now) else {
        return Vec::new();
    };
    let violated = minimums.into_iter().filter(|(_, minimum)| shortest < *minimum);
    violated
        .map(|(name, minimum)| {
            let message = format!(
                "two runs are only {shortest} s apart, but CronTabPolicy {name:?} of the namespace demands {minimum} s \
                 (spec.limits.minIntervalSeconds)"
            );
            FieldError::forbidden(SCHEDULE, &spec.schedule, message)
        })
        .collect()
}

/// Returns the shortest interval between two runs in seconds, by UTC.
///
/// All days with runs have the same times. So it is the shortest interval within one day, or the
/// one across midnight if there are runs on two days in a row.
fn shortest_interval(text: &str, schedule: &Schedule, now: Timestamp) -> Option<i64> {
    let next = |after| schedule.next(after, &TimeZone::UTC, DstPolicy::Kubernetes);
    let first = next(now)?;
    if text.starts_with("@every") {
        return Some(seconds(first, next(first)?));
    }
    let begin = next(midnight(first)?)?;
    let (mut last, mut shortest) = (begin, i64::MAX);
    while let Some(run) = next(last).filter(|run| midnight(*run) == midnight(begin)) {
        shortest = shortest.min(seconds(last, run));
        last = run;
    }
    let across = DAY - seconds(begin, last);
    if across < shortest && has_adjacent_days(begin, next) {
        shortest = across;
    }
    Some(shortest)
}

/// Returns whether there are runs on two days in a row within the years in which runs are searched.
fn has_adjacent_days(begin: Timestamp, next: impl Fn(Timestamp) -> Option<Timestamp>) -> bool {
    let mut day = midnight(begin);
    for _ in 0..SEARCHED_DAYS {
        let Some(following) = day.and_then(|day| day.checked_add(SignedDuration::from_secs(DAY)).ok()) else {
            return false;
        };
        let run_day = next(following).and_then(midnight);
        if run_day == Some(following) {
            return true;
        }
        day = run_day;
    }
    false
}

/// Returns the second before the day begins, by UTC, so that the next run may be at its begin.
fn midnight(time: Timestamp) -> Option<Timestamp> {
    Timestamp::from_second(time.as_second().div_euclid(DAY) * DAY - 1).ok()
}

fn seconds(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

/// Returns a warning if the next changes of the clock skip or repeat runs.
fn clock_change(schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<String> {
    let until = now.checked_add(CLOCK_CHANGES_WITHIN).ok()?;
    let changes = zone.following(now).map(|change| change.timestamp());
    changes.take_while(|change| *change < until).find_map(|change| {
        let from = change.checked_sub(AROUND_A_CHANGE).ok()?;
        let to = change.checked_add(AROUND_A_CHANGE).ok()?;
        let count = |policy| schedule.count(from, to, zone, policy, 1_000);
        let (once, kubernetes) = (count(DstPolicy::Once), count(DstPolicy::Kubernetes));
        let effect = match kubernetes.cmp(&once) {
            Ordering::Less => "skips",
            Ordering::Greater => "repeats",
            Ordering::Equal => return None,
        };
        let day = zone.to_datetime(change).date();
        Some(format!(
            "spec.dstPolicy: the clock change of {day} {effect} a run; with Once, it runs once"
        ))
    })
}

#[cfg(test)]
mod tests;
