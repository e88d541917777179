//! The schedules, their Jobs, and the creation of objects.

use std::time::Instant;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp, Unit, Zoned, tz::TimeZone};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::progress::{Progress, length};

/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "default";
/// The number of concurrent requests that create objects.
const CONCURRENT_CREATES: usize = 16;
/// The number of created objects after which a progress line is written.
const PROGRESS_EVERY: usize = 2000;
/// Between one and one and a half years, so that a yearly schedule that is due in half a year has
/// missed exactly one run.
const MORE_THAN_A_YEAR: SignedDuration = SignedDuration::from_hours(400 * 24);

/// A kind with a schedule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    CronJob,
    CronTab,
}

impl Kind {
    pub(crate) fn api(self, client: &Client) -> Api<DynamicObject> {
        let (group, kind) = self.names();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::CronJob => ("batch", "CronJob"),
            Self::CronTab => ("stable.example.com", "CronTab"),
        }
    }

    fn api_version(self) -> String {
        format!("{}/v1", self.names().0)
    }

    /// Returns an object of this kind. A controller does nothing for a suspended one.
    pub(crate) fn object(self, name: &str, schedule: &str, suspend: bool) -> Value {
        let job_template = match self {
            Self::CronJob => json!({"metadata": {"labels": {"app": name}}, "spec": job_spec(name)}),
            Self::CronTab => pod_spec(),
        };
        json!({
            "apiVersion": self.api_version(),
            "kind": self.names().1,
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
            "spec": {"schedule": schedule, "suspend": suspend, "jobTemplate": job_template},
        })
    }
}

fn job_spec(name: &str) -> Value {
    json!({"backoffLimit": 2, "template": {"metadata": {"labels": {"app": name}}, "spec": pod_spec()}})
}

fn pod_spec() -> Value {
    json!({
        "restartPolicy": "OnFailure",
        "containers": [{
            "name": "work",
            "image": "registry.example.com/team/work:1.2.3",
            "command": ["/bin/work", "--once", "--verbose"],
            "env": [{"name": "REGION", "value": "north"}, {"name": "DEPTH", "value": "7"}],
            "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        }],
    })
}

/// An object that the apiserver has stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Created {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
}

impl Created {
    /// Creates one object.
    pub(crate) async fn post(api: &Api<DynamicObject>, object: Value) -> Result<Self> {
        let metadata = post(api, object).await?.metadata;
        let (name, uid, version) = (metadata.name, metadata.uid, metadata.resource_version);
        let identity = name.zip(uid).zip(version);
        let ((name, uid), version) =
            identity.context("the apiserver stored an object without a name, UID or version")?;
        Ok(Self { name, uid, version })
    }

    /// Returns the Job that a controller creates for the run at `due`.
    pub(crate) fn job(&self, due: Timestamp) -> Value {
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": self.job_name(due),
                "namespace": NAMESPACE,
                "labels": {"app": self.name},
                "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": due},
                "ownerReferences": [{
                    "apiVersion": "batch/v1",
                    "kind": "CronJob",
                    "name": self.name,
                    "uid": self.uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": job_spec(&self.name),
        })
    }

    /// Returns the status that a controller writes after it has created the Job.
    pub(crate) fn status(&self, due: Timestamp, job_uid: &str) -> Value {
        json!({
            "metadata": {"uid": self.uid, "resourceVersion": self.version},
            "status": {
                "active": [{
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "namespace": NAMESPACE,
                    "name": self.job_name(due),
                    "uid": job_uid,
                }],
                "lastScheduleTime": due,
            },
        })
    }

    fn job_name(&self, due: Timestamp) -> String {
        format!("{}-{}", self.name, due.as_second() / 60)
    }
}

/// Returns a daily schedule whose next run is at this minute.
pub(crate) fn once_at(minute: Timestamp) -> String {
    let minute = minute.to_zoned(TimeZone::UTC);
    format!("{} {} * * *", minute.minute(), minute.hour())
}

/// Returns a yearly schedule that is due in half a year. Successive indexes differ in minute and
/// hour.
pub(crate) fn far_from(now: &Zoned, index: usize) -> String {
    let month = (now.month() + 5) % 12 + 1;
    format!("{} {} 1 {month} *", index % 60, index / 60 % 24)
}

/// Returns a status that makes a CronJob with such a schedule overdue at once: the run of half a
/// year ago counts as missed.
pub(crate) fn overdue(now: Timestamp) -> Result<Value> {
    let last_run = now.checked_sub(MORE_THAN_A_YEAR).context("the time is too early")?;
    Ok(json!({"status": {"lastScheduleTime": last_run.round(Unit::Second)?}}))
}

/// Creates `count` schedules, several at a time.
pub(crate) async fn create(
    kind: Kind,
    client: &Client,
    count: usize,
    schedule: impl Fn(usize) -> String,
    progress: &Progress,
) -> Result<Vec<Created>> {
    let objects = (0..count).map(|index| kind.object(&format!("schedule-{index:05}"), &schedule(index), false));
    create_all(&kind.api(client), objects, progress).await
}

/// Creates objects, several at a time.
pub(crate) async fn create_all(
    api: &Api<DynamicObject>,
    objects: impl ExactSizeIterator<Item = Value>,
    progress: &Progress,
) -> Result<Vec<Created>> {
    let count = objects.len();
    let started = Instant::now();
    let create = |object: Value| Created::post(api, object);
    let mut responses = stream::iter(objects).map(create).buffer_unordered(CONCURRENT_CREATES);
    let mut created = Vec::with_capacity(count);
    while let Some(object) = responses.try_next().await? {
        created.push(object);
        if created.len() < count && created.len().is_multiple_of(PROGRESS_EVERY) {
            let remaining = started.elapsed() * u32::try_from(count - created.len())? / u32::try_from(created.len())?;
            let (made, remaining) = (created.len(), length(remaining));
            progress.log(format!("  {made} of {count} objects created, {remaining} left"));
        }
    }
    Ok(created)
}

/// Creates one object.
pub(crate) async fn post(api: &Api<DynamicObject>, object: Value) -> Result<DynamicObject> {
    let object: DynamicObject = serde_json::from_value(object).context("failed to build an object")?;
    let created = api.create(&PostParams::default(), &object).await;
    created.with_context(|| format!("failed to create {}", object.metadata.name.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        time.parse().unwrap()
    }

    #[test]
    fn a_daily_schedule_is_due_at_the_minute_of_the_time() {
        assert_eq!(once_at(at("2026-11-21T15:07:00Z")), "7 15 * * *");
        assert_eq!(once_at(at("2026-11-22T00:00:00Z")), "0 0 * * *");
    }

    #[test]
    fn a_far_schedule_is_due_in_half_a_year() {
        let november = at("2026-11-21T15:07:00Z").to_zoned(TimeZone::UTC);
        assert_eq!(far_from(&november, 0), "0 0 1 5 *");
        assert_eq!(far_from(&november, 61), "1 1 1 5 *");
        let june = at("2026-06-21T15:07:00Z").to_zoned(TimeZone::UTC);
        assert_eq!(far_from(&june, 1440), "0 0 1 12 *");
        let december = at("2026-12-21T15:07:00Z").to_zoned(TimeZone::UTC);
        assert_eq!(far_from(&december, 0), "0 0 1 6 *");
    }

    #[test]
    fn an_overdue_status_precedes_the_last_run() {
        let status = overdue(at("2026-11-21T15:07:00.7Z")).unwrap();
        assert_eq!(status["status"]["lastScheduleTime"], "2025-10-17T15:07:01Z");
    }

    #[test]
    fn the_floor_creates_the_same_job_as_a_controller() {
        let owner = Created {
            name: "one".to_owned(),
            uid: "u-1".to_owned(),
            version: "7".to_owned(),
        };
        let job = owner.job(at("2026-11-21T15:07:00Z"));
        assert_eq!(job["metadata"]["name"], "one-29921227");
        let annotation = &job["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"];
        assert_eq!(annotation, "2026-11-21T15:07:00Z");
        assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "u-1");
        let template = Kind::CronJob.object("one", "@daily", false);
        assert_eq!(job["spec"], template["spec"]["jobTemplate"]["spec"]);
    }
}
