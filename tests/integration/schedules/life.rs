//! The life cycle of a schedule: Jobs are created, finish and are cleaned up.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use portreeve_crontab::api::RUN_NOW;
use serde_json::json;

use super::environment::ScheduleEnvironment;
use crate::fixtures::{
    manifests,
    schedules::{Kind, minutes, next_minute},
};

/// The documentation of CronTabs. Users copy its first example.
const DOCUMENTATION: &str = include_str!("../../../docs/crontab.md");

#[tokio::test]
async fn a_due_time_creates_one_job_and_updates_status_and_events() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    for kind in Kind::BOTH {
        environment.clock.reset();
        let name = kind.name();
        let created = environment
            .create(kind, name, "*/10 * * * *", json!({"timeZone": "Asia/Tokyo"}))
            .await?;
        let slot = next_minute(created, 10);
        environment.clock.set(slot);
        let expected = kind.job_of(name, slot);
        let jobs = environment.wait_for_jobs(name, std::slice::from_ref(&expected)).await?;
        check_job(&environment, kind, &jobs[0], slot).await?;
        let time = format!("{slot:.0}");
        let status = environment
            .status(kind, name, "the run", |status| status["lastScheduleTime"] == *time)
            .await?;
        ensure!(status["active"][0]["name"] == *expected, "{status}");
        ensure!(
            status["active"][0]["uid"].as_str() == jobs[0].uid().as_deref(),
            "{status}"
        );
        if kind == Kind::CronTab {
            let next = format!("{:.0}", slot + minutes(10));
            ensure!(
                status["nextScheduleTime"] == *next && status["activeCount"] == 1,
                "{status}"
            );
        }
        environment.end_job(&expected, true).await?;
        let status = environment
            .status(kind, name, "the end", |status| status["lastSuccessfulTime"].is_string())
            .await?;
        ensure!(status["active"].as_array().is_none_or(Vec::is_empty), "{status}");
        environment
            .wait_for_events(name, &["SuccessfulCreate", "SawCompletedJob"])
            .await?;
    }
    let metrics = environment.daemon.admin.metrics().await?;
    for metric in
        ["cronjob", "crontab"].map(|kind| format!("{kind}_controller_job_creation_skew_duration_seconds_count"))
    {
        ensure!(metrics.sum(&metric, &[]) >= 1.0, "{metric}: {}", metrics.0);
    }
    environment.finish().await
}

async fn check_job(environment: &ScheduleEnvironment, kind: Kind, job: &Job, slot: jiff::Timestamp) -> Result<()> {
    let annotation = &job.annotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"];
    let scheduled: jiff::Timestamp = annotation.parse()?;
    ensure!(scheduled == slot && annotation.ends_with("+09:00"), "{annotation}");
    let owner = environment.objects(kind).get(kind.name()).await?;
    let [reference] = job.owner_references() else {
        anyhow::bail!("{:?}", job.owner_references());
    };
    let reference_fields = (
        reference.controller,
        reference.block_owner_deletion,
        Some(&reference.uid),
    );
    ensure!(
        reference_fields == (Some(true), Some(true), owner.metadata.uid.as_ref()),
        "{reference:?}"
    );
    let spec = job.spec.as_ref().context("the Job has no spec")?;
    let pod = spec.template.spec.as_ref().context("the Job has no pod template")?;
    ensure!(pod.restart_policy.as_deref() == Some("Never"), "{pod:?}");
    ensure!(
        pod.containers[0].image.as_deref() == Some("example.com/backup:9"),
        "{pod:?}"
    );
    Ok(())
}

#[tokio::test]
async fn the_documented_manifest_works_unchanged() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let example = DOCUMENTATION
        .split("```")
        .find_map(|block| block.strip_prefix("yaml\n"));
    let [example] = &manifests::documents(example.context("docs/crontab.md has no YAML block")?)?[..] else {
        anyhow::bail!("the example is not exactly one object");
    };
    let object = serde_json::from_value(example.clone())?;
    let created = environment
        .objects(Kind::CronTab)
        .create(&kube::api::PostParams::default(), &object)
        .await?;
    let created = created
        .metadata
        .creation_timestamp
        .context("the object has no creation timestamp")?
        .0;
    let slot = next_minute(created, 24 * 60);
    let next = format!("{slot:.0}");
    let is_planned = |status: &serde_json::Value| status["nextScheduleTime"] == *next;
    environment
        .status(Kind::CronTab, "backup", "the next midnight", is_planned)
        .await?;
    environment.clock.set(slot);
    environment
        .wait_for_jobs("backup", &[Kind::CronTab.job_of("backup", slot)])
        .await?;
    environment.finish().await
}

#[tokio::test]
async fn concurrency_policies_apply_when_the_previous_run_is_active() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    environment.wait_until_time_left(1).await;
    let mut schedules = Vec::new();
    for kind in Kind::BOTH {
        for policy in ["Allow", "Forbid", "Replace"] {
            let name = format!("{}-{}", kind.name(), policy.to_lowercase());
            let created = environment
                .create(kind, &name, "* * * * *", json!({"concurrencyPolicy": policy}))
                .await?;
            schedules.push((kind, policy, name, created));
        }
    }
    let last_created = schedules.iter().map(|(.., created)| *created).max().context("empty")?;
    let first = next_minute(last_created, 1);
    let second = first + minutes(1);
    environment.clock.set(first);
    for (kind, _, name, _) in &schedules {
        environment.wait_for_jobs(name, &[kind.job_of(name, first)]).await?;
        let time = format!("{first:.0}");
        environment
            .status(*kind, name, "the first run", |status| {
                status["lastScheduleTime"] == *time
            })
            .await?;
    }
    environment.clock.set(second);
    for (kind, policy, name, _) in &schedules {
        let (old, new) = (kind.job_of(name, first), kind.job_of(name, second));
        match *policy {
            "Allow" => {
                environment.wait_for_jobs(name, &[old, new]).await?;
                environment
                    .wait_for_events(name, &["SuccessfulCreate", "SuccessfulCreate"])
                    .await?;
            }
            "Replace" => {
                environment.wait_for_jobs(name, std::slice::from_ref(&new)).await?;
                let one =
                    |status: &serde_json::Value| status["active"].as_array().is_some_and(|active| active.len() == 1);
                let status = environment.status(*kind, name, "the new run alone", one).await?;
                ensure!(status["active"][0]["name"] == *new, "{status}");
                environment
                    .wait_for_events(name, &["SuccessfulCreate", "SuccessfulDelete", "SuccessfulCreate"])
                    .await?;
            }
            _ => {
                environment
                    .wait_for_events(name, &["SuccessfulCreate", "JobAlreadyActive"])
                    .await?;
                environment.wait_for_jobs(name, std::slice::from_ref(&old)).await?;
                // The pending run starts once the previous run has ended.
                environment.end_job(&old, true).await?;
                environment.wait_for_jobs(name, &[old, new]).await?;
            }
        }
    }
    environment.finish().await
}

#[tokio::test]
async fn each_new_value_of_the_run_now_annotation_creates_one_job() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let kind = Kind::CronTab;
    environment
        .create(kind, "tab", "@yearly", json!({"suspend": true}))
        .await?;
    // A value that is set before the first status starts no run.
    environment.wait_until_reconciled(kind, "tab").await?;
    let run_now = |value: &str| json!({"metadata": {"annotations": {RUN_NOW: value}}});
    for (value, jobs) in [("first", 1), ("second", 2)] {
        environment.merge(kind, "tab", run_now(value)).await?;
        environment
            .status(kind, "tab", "the run", |status| status["lastRunNow"] == *value)
            .await?;
        let found = environment.jobs("tab").await?;
        ensure!(found.len() == jobs, "{found:#?}");
        ensure!(
            found.iter().all(|job| job.name_any().starts_with("tab-fa6723ea-r")),
            "{found:#?}"
        );
    }
    // The same value starts no further Job, not even after a restart.
    environment.merge(kind, "tab", run_now("second")).await?;
    let environment = environment.restart().await?;
    environment
        .merge(kind, "tab", json!({"metadata": {"annotations": {RUN_NOW: "third"}}}))
        .await?;
    environment
        .status(kind, "tab", "the third run", |status| status["lastRunNow"] == "third")
        .await?;
    let found = environment.jobs("tab").await?;
    ensure!(found.len() == 3, "{found:#?}");
    environment
        .wait_for_events("tab", &["SuccessfulCreate", "SuccessfulCreate", "SuccessfulCreate"])
        .await?;
    environment.finish().await
}

#[tokio::test]
async fn a_change_of_the_schedule_or_of_suspend_takes_effect_at_once() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    for kind in Kind::BOTH {
        environment.clock.reset();
        let name = kind.name();
        let created = environment.create(kind, name, "@yearly", json!({})).await?;
        let start = next_minute(created, 10) + minutes(10);
        environment.clock.set(start);
        environment
            .merge(kind, name, json!({"spec": {"schedule": "*/5 * * * *"}}))
            .await?;
        environment.catch_up(kind, &format!("{name}-canary-1"), start).await?;
        // A new schedule does not start runs that would have been due before the change.
        ensure!(
            environment.jobs(name).await?.is_empty(),
            "{:?}",
            environment.jobs(name).await?
        );
        let first = start + minutes(5);
        environment.clock.set(first);
        environment.wait_for_jobs(name, &[kind.job_of(name, first)]).await?;

        environment
            .merge(kind, name, json!({"spec": {"suspend": true}}))
            .await?;
        environment
            .catch_up(kind, &format!("{name}-canary-of-suspension"), start)
            .await?;
        let second = start + minutes(10);
        environment.clock.set(second);
        environment.catch_up(kind, &format!("{name}-canary-2"), second).await?;
        environment.wait_for_jobs(name, &[kind.job_of(name, first)]).await?;
        if kind == Kind::CronTab {
            let is_suspended = |status: &serde_json::Value| {
                status["nextScheduleTime"].is_null() && status["conditions"][1]["reason"] == "Suspended"
            };
            environment
                .status(kind, name, "the reason Suspended", is_suspended)
                .await?;
        }
        // As with CronJob, the latest run that was due during the suspension starts.
        environment
            .merge(kind, name, json!({"spec": {"suspend": false}}))
            .await?;
        environment
            .wait_for_jobs(name, &[kind.job_of(name, first), kind.job_of(name, second)])
            .await?;
    }
    environment.finish().await
}

#[tokio::test]
async fn a_deleted_schedule_starts_no_further_jobs() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    for kind in Kind::BOTH {
        environment.clock.reset();
        environment.wait_until_time_left(10).await;
        let name = kind.name();
        let created = environment.create(kind, name, "*/10 * * * *", json!({})).await?;
        let first = next_minute(created, 10);
        environment.clock.set(first);
        environment.wait_for_jobs(name, &[kind.job_of(name, first)]).await?;
        environment.delete(kind, name).await?;
        // Until the controller has observed the deletion, it may start a run that is due.
        environment
            .catch_up(kind, &format!("{name}-canary-of-deletion"), first)
            .await?;
        let second = first + minutes(10);
        environment.clock.set(second);
        environment.catch_up(kind, &format!("{name}-canary"), second).await?;
        environment.wait_for_jobs(name, &[kind.job_of(name, first)]).await?;
    }
    environment.finish().await
}
