//! Sample objects of the two kinds, and helpers for times on the day of the tests.

use std::sync::Arc;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    api::JobNameFormat,
    cronjob::CachedCronJob,
    crontab::CachedCronTab,
    job_names::{self, JobNames},
    schedule_resource::ScheduleResource,
    scheduled_times::Timetable,
};

/// A kind whose objects tests can build.
pub(super) trait Sample: ScheduleResource + DeserializeOwned {
    /// The format of the names of Jobs.
    const FORMAT: Option<JobNameFormat>;

    /// Returns a value for `jobTemplate`.
    fn template() -> Value;
    /// Calls the function by which the informer's subscriber detects a changed schedule.
    fn is_rescheduled(old: &Arc<Self>, new: &Arc<Self>) -> bool {
        old.schedule_fields() != new.schedule_fields()
    }
    /// Returns the name of the Job of schedule `a` for a time.
    fn slot(time: &str) -> String {
        let names = JobNames {
            owner: "a",
            format: Self::FORMAT,
        };
        names.scheduled("default", at(time))
    }
}

impl Sample for CachedCronTab {
    const FORMAT: Option<JobNameFormat> = Some(JobNameFormat::Hashed);

    fn template() -> Value {
        json!({"containers": [{"name": "c", "image": "i"}]})
    }
}

impl Sample for CachedCronJob {
    const FORMAT: Option<JobNameFormat> = None;

    fn template() -> Value {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        json!({"metadata": {"labels": {"l": "1"}, "annotations": {"x": "y"}}, "spec": {"template": {"spec": pod}}})
    }
}

/// Parses a time on the day of the tests, such as `10:00` or `10:00:30`, or a complete timestamp.
pub(super) fn at(text: &str) -> Timestamp {
    let whole = match text.len() {
        5 => format!("2026-03-10T{text}:00Z"),
        8 => format!("2026-03-10T{text}Z"),
        _ => text.to_owned(),
    };
    whole.parse().expect("the text is a time")
}

/// Returns the scheduled time in a Job's name.
pub(super) fn time_of(job: &str) -> Option<Timestamp> {
    Timestamp::from_second(job_names::minutes("a", "default", job)? * 60).ok()
}

/// Returns a readable form of a Job's name, with the time instead of the minutes.
pub(super) fn readable(job: &str) -> String {
    time_of(job).map_or_else(|| job.to_owned(), |time| format!("a@{}", clock(time)))
}

/// Formats a time of day. The date and the seconds are only included if they differ from the usual
/// ones.
pub(super) fn clock(time: Timestamp) -> String {
    let text = time.to_string();
    let text = text.strip_prefix("2026-03-10T").unwrap_or(&text);
    let text = text.strip_suffix('Z').unwrap_or(text);
    text.strip_suffix(":00").unwrap_or(text).to_owned()
}

/// Returns the times of the schedule `default`.
pub(super) fn timetable_of<K: ScheduleResource>(object: &K) -> Timetable {
    let mut schedules = object.desired().schedules;
    schedules.remove(0).timetable.expect("the schedule is valid")
}
