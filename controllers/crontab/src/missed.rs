//! Computes which scheduled times had no run and will never have one.
//!
//! Architecture Invariant: pure.

use std::{collections::BTreeSet, iter};

use jiff::Timestamp;

use crate::{
    input::Input,
    origin::Origin,
    scheduled_times::{ScheduledTimes, Timetable, before},
};

/// Scheduled times that had no run and will never have one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    /// The number of missed times.
    pub(crate) count: u32,
    /// The latest missed time.
    pub(crate) last: Timestamp,
}

/// Returns the missed times of a schedule that are later than the recorded status.
///
/// `recorded_until` is the time up to which the status records runs, `last_schedule` is the last
/// time that has a run.
pub(crate) fn missed(
    input: &Input<'_>,
    index: usize,
    timetable: &Timetable,
    times: ScheduledTimes,
    recorded_until: Timestamp,
    last_schedule: Option<Timestamp>,
) -> Option<Missed> {
    if input.missed_metric.is_none() {
        // No status records the reported times, so only the latest expired one is reported, once.
        let last = times.expired.filter(|_| times.due.is_none())?;
        return Some(Missed { count: 1, last });
    }
    let last_missed = input.recorded.schedules[index].last_missed;
    let recorded_until = last_missed.map_or(recorded_until, |last| recorded_until.max(last));
    let last_run = last_schedule.filter(|last| *last > recorded_until);
    // Count the times without a Job before the last run, and the expired times after it.
    let unrecorded = last_run.map(|last| (before(last), times_with_job(input, index)));
    let skipped = unrecorded.as_ref().map_or(0, |(until, started)| {
        let started = started.iter().filter(|slot| recorded_until < **slot && *slot <= until);
        let started = u32::try_from(started.count()).unwrap_or(u32::MAX);
        timetable.count_without(started, recorded_until, *until)
    });
    let since = last_run.unwrap_or(recorded_until);
    let expired = times.expired.filter(|expired| *expired > since);
    let count = skipped + expired.map_or(0, |expired| timetable.count(since, expired));
    let last = expired.or_else(|| {
        let (until, started) = unrecorded.as_ref()?;
        last_without_job(timetable, started, recorded_until, *until)
    });
    (count > 0).then_some(Missed { count, last: last? })
}

/// Returns the latest scheduled time after `since` and up to `until` that has no Job.
fn last_without_job(
    timetable: &Timetable,
    started: &BTreeSet<Timestamp>,
    since: Timestamp,
    until: Timestamp,
) -> Option<Timestamp> {
    let earlier = |slot: &Timestamp| timetable.latest(since, before(*slot));
    let mut times = iter::successors(timetable.latest(since, until), earlier);
    times.find(|slot| !started.contains(slot))
}

/// Returns the times of a schedule that have a Job, or had one that was replaced.
fn times_with_job(input: &Input<'_>, index: usize) -> BTreeSet<Timestamp> {
    let runs = input.jobs.iter().flat_map(|job| job.runs(&input.metadata.name));
    let schedule = &input.desired.schedules[index].name;
    let times = runs.filter_map(|origin| match origin {
        Origin::Scheduled(name, slot) if *name == **schedule => Some(slot),
        _ => None,
    });
    times.collect()
}
