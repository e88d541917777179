//! Schedules that are invalid or whose requests fail, and the conditions and events that report
//! it.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

use super::environment::ScheduleEnvironment;
use crate::{
    faults::{
        admission::{reject_crontab_statuses, reject_job_deletions, stop_rejecting},
        servers::during_outage,
    },
    fixtures::schedules::{Kind, next_minute},
};

fn condition<'a>(status: &'a Value, type_: &str) -> &'a Value {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == *type_);
    found.unwrap_or(&Value::Null)
}

#[tokio::test]
async fn an_invalid_spec_is_reported_by_condition_and_event() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let kind = Kind::CronTab;
    let table = [
        ("minute", json!({"schedule": "61 * * * *"}), "InvalidSchedule", "minute"),
        ("every", json!({"schedule": "@every 10s"}), "InvalidSchedule", "@every"),
        (
            "never",
            json!({"schedule": "0 0 31 2 *"}),
            "InvalidSchedule",
            "five years",
        ),
        (
            "zone",
            json!({"timeZone": "Mars/Olympus"}),
            "UnknownTimeZone",
            "Mars/Olympus",
        ),
    ];
    for (name, spec, reason, word) in &table {
        environment.create(kind, name, "@daily", spec.clone()).await?;
        let is_invalid = |status: &Value| {
            let valid = condition(status, "Valid");
            let message = valid["message"].as_str().unwrap_or_default();
            valid["status"] == "False" && valid["reason"] == **reason && message.contains(word)
        };
        environment.status(kind, name, "the reason", is_invalid).await?;
        environment.wait_for_events(name, &[reason]).await?;
    }
    let empty = json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "empty"}});
    let empty = serde_json::from_value(empty)?;
    environment.objects(kind).create(&PostParams::default(), &empty).await?;
    let is_missing = |status: &Value| condition(status, "Valid")["reason"] == "MissingSpec";
    environment
        .status(kind, "empty", "the reason MissingSpec", is_missing)
        .await?;
    // A corrected spec makes the object ready.
    environment
        .merge(kind, "minute", json!({"spec": {"schedule": "1 * * * *"}}))
        .await?;
    let is_ready = |status: &Value| condition(status, "Ready")["status"] == "True";
    environment
        .status(kind, "minute", "a true Ready condition", is_ready)
        .await?;
    environment.finish().await
}

/// Writes a CronJob with a schedule that the apiserver rejects, as an earlier apiserver may have
/// stored it.
async fn store_bad_schedule(environment: &ScheduleEnvironment, name: &str, suspend: bool) -> Result<()> {
    let stored = environment.objects(Kind::CronJob).get(name).await?;
    let mut object = serde_json::to_value(stored)?;
    object["spec"]["schedule"] = "61 * * * *".into();
    object["spec"]["suspend"] = suspend.into();
    let metadata = object["metadata"]
        .as_object_mut()
        .context("the object has no metadata")?;
    // etcd keeps the version.
    metadata.remove("resourceVersion");
    let generation = metadata["generation"].as_i64().unwrap_or_default();
    metadata.insert("generation".to_owned(), (generation + 1).into());
    let path = format!("cronjobs/{}/{name}", environment.fixture.name());
    environment.plane.store_unchecked(&path, &object).await
}

#[tokio::test]
async fn a_bad_schedule_of_a_cronjob_is_reported_unless_it_is_suspended() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let kind = Kind::CronJob;
    for name in ["active", "suspended"] {
        environment.create(kind, name, "@yearly", json!({})).await?;
    }
    store_bad_schedule(&environment, "suspended", true).await?;
    store_bad_schedule(&environment, "active", false).await?;
    let reasons = ["UnparseableSchedule", "UnParseableCronJobSchedule"];
    let events = environment.wait_for_events("active", &reasons).await?;
    for event in events {
        let note = event.note.unwrap_or_default();
        ensure!(
            event.type_.as_deref() == Some("Warning") && note.contains("minute"),
            "{note}"
        );
    }
    // The controller observed the suspended CronJob before the other one.
    environment.wait_for_events("suspended", &[]).await?;
    store_bad_schedule(&environment, "suspended", false).await?;
    environment.wait_for_events("suspended", &reasons).await?;
    environment.finish().await
}

#[tokio::test]
async fn a_rejected_job_is_reported_and_created_after_a_correction() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let kind = Kind::CronTab;
    let template = json!({"jobTemplate": {"containers": [{"name": "no-image"}]}});
    let created = environment.create(kind, "tab", "0 * * * *", template).await?;
    let slot = next_minute(created, 60);
    environment.clock.set(slot);
    let is_rejected = |status: &Value| {
        let ready = condition(status, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        ready["reason"] == "FailedCreate" && message.contains("spec.template.spec.containers[0].image")
    };
    let status = environment.status(kind, "tab", "the refusal", is_rejected).await?;
    ensure!(condition(&status, "Valid")["status"] == "True", "{status}");
    environment.wait_for_events("tab", &["FailedCreate"]).await?;
    let template = json!({"spec": {"jobTemplate": {"containers": [{"name": "main", "image": "example.com/now:1"}]}}});
    environment.merge(kind, "tab", template).await?;
    environment.wait_for_jobs("tab", &[kind.job_of("tab", slot)]).await?;
    let is_ready = |status: &Value| condition(status, "Ready")["status"] == "True";
    environment
        .status(kind, "tab", "a true Ready condition", is_ready)
        .await?;
    environment.finish().await
}

#[tokio::test]
async fn a_foreign_job_of_the_same_name_is_kept_and_the_creation_is_retried() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let jobs: Api<Job> = environment.fixture.namespace.api();
    // The names of Jobs do not start with the whole name of a CronTab of this length.
    let long = "n".repeat(52);
    for (kind, name) in [(Kind::CronTab, "tab"), (Kind::CronTab, &*long), (Kind::CronJob, "job")] {
        environment.clock.reset();
        environment.wait_until_time_left(60).await;
        let slot = next_minute(Timestamp::now(), 60);
        let taken = kind.job_of(name, slot);
        let foreign = foreign(&taken)?;
        let foreign = jobs.create(&PostParams::default(), &foreign).await?;
        environment.create(kind, name, "0 * * * *", json!({})).await?;
        environment.clock.set(slot);
        environment.wait_for_events(name, &["FailedCreate"]).await?;
        let found = jobs.get(&taken).await?;
        ensure!(
            found.metadata.resource_version == foreign.metadata.resource_version,
            "{found:#?}"
        );
        jobs.delete(&taken, &DeleteParams::background()).await?;
        environment.wait_for_jobs(name, &[taken]).await?;
    }
    environment.finish().await
}

fn foreign(name: &str) -> Result<Job> {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {"spec": {
            "containers": [{"name": "theirs", "image": "example.com/theirs:1"}], "restartPolicy": "Never"}}},
    });
    serde_json::from_value(job).context("invalid Job manifest")
}

#[tokio::test]
async fn a_run_due_during_an_outage_starts_after_the_outage() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    environment.wait_until_time_left(5).await;
    let mut slot = Timestamp::MIN;
    for kind in Kind::BOTH {
        let created = environment.create(kind, kind.name(), "*/5 * * * *", json!({})).await?;
        environment.wait_until_reconciled(kind, kind.name()).await?;
        slot = slot.max(next_minute(created, 5));
    }
    during_outage(&environment.plane, || environment.clock.set(slot)).await?;
    for kind in Kind::BOTH {
        let name = kind.name();
        environment.wait_for_jobs(name, &[kind.job_of(name, slot)]).await?;
        let time = format!("{slot:.0}");
        environment
            .status(kind, name, "the run", |status| status["lastScheduleTime"] == *time)
            .await?;
    }
    // The apiserver serves requests before its authorizer is ready, so it may have rejected some,
    // and `finish` would fail.
    environment.daemon.stop().await
}

#[tokio::test]
async fn a_rejected_deletion_is_reported_by_event_and_changes_no_condition() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let (kind, name) = (Kind::CronTab, "tab");
    let created = environment
        .create(kind, name, "* * * * *", json!({"successfulJobsHistoryLimit": 0}))
        .await?;
    let slot = next_minute(created, 1);
    let jobs: Api<Job> = environment.fixture.namespace.api();
    reject_job_deletions(&environment.fixture).await?;
    environment.clock.set(slot);
    let job = kind.job_of(name, slot);
    environment.wait_for_jobs(name, std::slice::from_ref(&job)).await?;
    environment.end_job(&job, true).await?;
    environment
        .wait_for_events(name, &["SuccessfulCreate", "SawCompletedJob", "FailedDelete"])
        .await?;
    let before = environment.objects(kind).get(name).await?.metadata.resource_version;
    environment
        .merge(kind, name, json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    let status = environment
        .status(kind, name, "no other condition", |status| {
            condition(status, "Ready")["status"] == "True"
        })
        .await?;
    let after = environment.objects(kind).get(name).await?.metadata.resource_version;
    let version = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
    ensure!(
        version(after) <= version(before) + 20,
        "the controller keeps writing the object: {status}"
    );
    ensure!(
        jobs.get_opt(&job).await?.is_some(),
        "the Job was deleted in spite of the policy"
    );
    environment.daemon.stop().await
}

#[tokio::test]
async fn a_rejected_first_status_is_reported_and_delays_the_first_run() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let (kind, name) = (Kind::CronTab, "tab");
    reject_crontab_statuses(&environment.fixture).await?;
    environment.wait_until_time_left(60).await;
    let created = environment.create(kind, name, "0 * * * *", json!({})).await?;
    let slot = next_minute(created, 60);
    environment.clock.set(slot);
    environment.wait_for_events(name, &["FailedStatusUpdate"]).await?;
    ensure!(
        environment.jobs(name).await?.is_empty(),
        "a run precedes the first status"
    );
    stop_rejecting(&environment.fixture).await?;
    environment.wait_for_jobs(name, &[kind.job_of(name, slot)]).await?;
    environment
        .wait_for_events(name, &["FailedStatusUpdate", "SuccessfulCreate"])
        .await?;
    environment.daemon.stop().await
}
