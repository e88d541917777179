//! The two kinds as tests write them, and the day that tests play on.

use std::sync::Arc;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    cronjob::{self, CachedCronJob},
    crontab::{self, CachedCronTab},
    schedule_resource::ScheduleResource,
};

/// A kind that tests can make objects of.
pub(super) trait Sample: ScheduleResource + DeserializeOwned {
    /// A pod template, where this kind wants it.
    fn template() -> Value;
    /// What tells the informer's subscriber that the schedule is another one.
    fn is_rescheduled(old: &Arc<Self>, new: &Arc<Self>) -> bool;
}

impl Sample for CachedCronTab {
    fn template() -> Value {
        json!({"containers": [{"name": "c", "image": "i"}]})
    }

    fn is_rescheduled(old: &Arc<Self>, new: &Arc<Self>) -> bool {
        crontab::is_rescheduled(old, new)
    }
}

impl Sample for CachedCronJob {
    fn template() -> Value {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        json!({"metadata": {"labels": {"l": "1"}, "annotations": {"x": "y"}}, "spec": {"template": {"spec": pod}}})
    }

    fn is_rescheduled(old: &Arc<Self>, new: &Arc<Self>) -> bool {
        cronjob::is_rescheduled(old, new)
    }
}

/// A time on the day of the tests, `10:00` or `10:00:30`, or any other one when it is written whole.
pub(super) fn at(text: &str) -> Timestamp {
    let whole = match text.len() {
        5 => format!("2026-03-10T{text}:00Z"),
        8 => format!("2026-03-10T{text}Z"),
        _ => text.to_owned(),
    };
    whole.parse().expect("a time")
}

/// How the Job for that time is called, of the schedule `a`.
pub(super) fn slot(time: &str) -> String {
    format!("a-{}", at(time).as_second() / 60)
}

/// The time that a Job is named for.
pub(super) fn time_of(job: &str) -> Option<Timestamp> {
    let (_, minutes) = job.rsplit_once('-')?;
    Timestamp::from_second(minutes.parse::<i64>().ok()? * 60).ok()
}

/// A Job's name for people, with the time instead of the minutes.
pub(super) fn readable(job: &str) -> String {
    match (job.rsplit_once('-'), time_of(job)) {
        (Some((owner, _)), Some(time)) => format!("{owner}@{}", clock(time)),
        _ => job.to_owned(),
    }
}

/// The time of the day, with what differs from the usual: the date, the seconds.
pub(super) fn clock(time: Timestamp) -> String {
    let text = time.to_string();
    let text = text.strip_prefix("2026-03-10T").unwrap_or(&text);
    let text = text.strip_suffix('Z').unwrap_or(text);
    text.strip_suffix(":00").unwrap_or(text).to_owned()
}
