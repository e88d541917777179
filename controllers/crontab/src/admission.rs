//! The webhook of CronTabs: what the definition cannot express, because it needs to parse a
//! schedule or to know time zones.
//!
//! Only a changed field is rejected, so that a CronTab that was stored without the webhook can
//! still be changed.
//!
//! Architecture Invariant: pure. The time is an argument.

mod reviewed;

use std::cmp::Ordering;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use portreeve_cron::{Dialect, DstPolicy, Schedule, load_zone};
use portreeve_reconcile::admission::{FieldError, Review, Verdict, Webhook};
use serde::Deserialize;

use self::reviewed::{ReviewedCronTab, ReviewedSchedule};
use crate::{
    api::{CRONTAB_POLICIES, CRONTABS, MAX_SCHEDULES, V2_FIELDS},
    conversion,
};

/// The name of both webhooks, which have a path each.
const WEBHOOK: &str = "crontabs.stable.example.com";
/// What is wrong with the value of a time zone. The error has the value already.
const UNKNOWN_ZONE: &str = "unknown time zone: use a name from the IANA time zone database, such as Europe/Berlin";
/// A day in seconds.
const DAY: i64 = 24 * 60 * 60;
/// The number of days with runs among which two in a row are searched: those of five years.
const SEARCHED_DAYS: usize = 5 * 366;
/// How far ahead changes of the clock are searched.
const CLOCK_CHANGES_WITHIN: SignedDuration = SignedDuration::from_hours(366 * 24);
/// Longer than any change of the clock.
const AROUND_A_CHANGE: SignedDuration = SignedDuration::from_hours(25);

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
        Webhook::validating(WEBHOOK, CRONTABS, validate)
            .with_versions(&["v2"])
            .with_parameters(CRONTAB_POLICIES),
        Webhook::converting(WEBHOOK, CRONTABS, conversion::convert),
    ]
}

fn validate(review: &Review<'_, ReviewedCronTab>) -> Verdict {
    let old = review.old.as_ref();
    let mut verdict = Verdict::new();
    if !review.new.fits_v1 && old.is_none_or(|old| old.fits_v1) {
        verdict = verdict.error(FieldError::forbidden(
            "spec.template",
            "",
            "v1 cannot store what only v2 has, because the annotations would exceed 256 KiB: shorten the labels and \
             annotations of the templates and of the CronTab",
        ));
    }
    if let Some(problem) = &review.new.v2_only_problem
        && old.is_none_or(|old| old.v2_only != review.new.v2_only)
    {
        let field = format!("metadata.annotations[{V2_FIELDS}]");
        verdict = verdict.error(FieldError::forbidden(&field, "", problem));
    }
    let is_too_many = |schedules: &[ReviewedSchedule]| schedules.len() > MAX_SCHEDULES;
    if is_too_many(&review.new.schedules) && old.is_none_or(|old| !is_too_many(&old.schedules)) {
        let message = format!("a CronTab can have at most {MAX_SCHEDULES} schedules");
        verdict = verdict.error(FieldError::forbidden("spec.schedules", "", message));
    }
    if !verdict.errors.is_empty() {
        return verdict;
    }
    let mut is_changed = false;
    // An object that was stored without the webhook may have more.
    for schedule in review.new.schedules.iter().take(MAX_SCHEDULES) {
        let old = old.and_then(|old| old.schedules.iter().find(|old| old.path == schedule.path));
        if old != Some(schedule) {
            is_changed = true;
            let Verdict { errors, warnings } = validate_schedule(review, schedule, old);
            verdict.errors.extend(errors);
            verdict.warnings.extend(warnings);
        }
    }
    let deadline = review.new.starting_deadline_seconds;
    is_changed |= old.is_none_or(|old| old.starting_deadline_seconds != deadline);
    if is_changed && verdict.errors.is_empty() && deadline == Some(0) {
        let path = match &*review.new.schedules {
            [ReviewedSchedule { path, .. }] if path == "spec" => "spec",
            _ => "spec.runPolicy",
        };
        verdict = verdict.warning(format!(
            "{path}.startingDeadlineSeconds: with 0, no run ever starts in time"
        ));
    }
    verdict
}

/// Validates a schedule that is new or has changed.
fn validate_schedule(
    review: &Review<'_, ReviewedCronTab>,
    reviewed: &ReviewedSchedule,
    old: Option<&ReviewedSchedule>,
) -> Verdict {
    let uid = &review.new.uid;
    let schedule = Schedule::parse(&reviewed.schedule, Dialect::CronTab { uid })
        .map_err(|error| FieldError::invalid(&reviewed.field("schedule"), &reviewed.schedule, error));
    let name = reviewed.time_zone.as_deref().unwrap_or_default();
    let zone = load_zone(name).map_err(|_| FieldError::invalid(&reviewed.field("timeZone"), name, UNKNOWN_ZONE));
    let is_rescheduled = old.is_none_or(|old| old.schedule != reviewed.schedule);
    let is_moved = old.is_none_or(|old| old.time_zone != reviewed.time_zone);
    match (schedule, zone) {
        (Ok(schedule), Ok(zone)) => {
            // Nobody has checked a schedule whose time zone was unknown.
            let errors = if is_rescheduled || old.is_some_and(ReviewedSchedule::is_in_unknown_zone) {
                rejections(review, reviewed, &schedule, &zone)
            } else {
                Vec::new()
            };
            let warnings = warnings(review, reviewed, &schedule, &zone);
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
    reviewed: &ReviewedSchedule,
    schedule: &Schedule,
    zone: &TimeZone,
) -> Vec<FieldError> {
    if schedule.next(review.now, zone, reviewed.policy()).is_none() {
        let message = "it never runs: no day within five years matches all fields";
        return vec![FieldError::invalid(
            &reviewed.field("schedule"),
            &reviewed.schedule,
            message,
        )];
    }
    violations(review, reviewed, schedule)
}

/// Returns what the user should know about a schedule that can run.
fn warnings(
    review: &Review<'_, ReviewedCronTab>,
    reviewed: &ReviewedSchedule,
    schedule: &Schedule,
    zone: &TimeZone,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if review.parameters.is_none() {
        warnings.push(format!(
            "{}: the minimum interval of the namespace was not checked, because the webhook cannot read CronTabPolicies",
            reviewed.field("schedule")
        ));
    }
    if reviewed.policy() == DstPolicy::Kubernetes
        && let Some(effect) = clock_change(schedule, zone, review.now)
    {
        warnings.push(format!("{}: {effect}", reviewed.field("dstPolicy")));
    }
    warnings
}

/// Returns an error for each policy of the namespace whose minimum interval is longer than the
/// shortest interval of the schedule.
fn violations(
    review: &Review<'_, ReviewedCronTab>,
    reviewed: &ReviewedSchedule,
    schedule: &Schedule,
) -> Vec<FieldError> {
    let minimums = review.parameters::<Policy>().filter_map(|policy| {
        let minimum = policy.spec.limits?.min_interval_seconds?;
        Some((policy.metadata.name, minimum))
    });
    let minimums: Vec<_> = minimums.collect();
    if minimums.is_empty() {
        return Vec::new();
    }
    let Some(shortest) = shortest_interval(&reviewed.schedule, schedule, review.now) else {
        return Vec::new();
    };
    let violated = minimums.into_iter().filter(|(_, minimum)| shortest < *minimum);
    violated
        .map(|(name, minimum)| {
            let message = format!(
                "two runs are only {shortest} s apart, but CronTabPolicy {name} of the namespace requires \
                 {minimum} s (spec.limits.minIntervalSeconds)"
            );
            FieldError::forbidden(&reviewed.field("schedule"), &reviewed.schedule, message)
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

/// Returns what the next changes of the clock do if they skip or repeat runs.
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
            "the clock change of {day} {effect} a run; with Once, it runs once"
        ))
    })
}

#[cfg(test)]
mod tests;
