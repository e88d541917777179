//! The names of the Jobs of a CronTab: they differ from those of a CronJob, and never change.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use portreeve_testing::eventually;
use serde_json::json;

use super::environment::ScheduleEnvironment;
use crate::fixtures::{
    LIMIT,
    schedules::{Kind, next_minute},
};

#[tokio::test]
async fn a_crontab_and_a_cronjob_of_the_same_name_both_run() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    environment.wait_until_time_left(10).await;
    let mut slot = jiff::Timestamp::MIN;
    for kind in Kind::BOTH {
        let created = environment.create(kind, "same", "*/10 * * * *", json!({})).await?;
        environment.wait_until_reconciled(kind, "same").await?;
        slot = slot.max(next_minute(created, 10));
    }
    environment.clock.set(slot);
    let jobs: Api<Job> = environment.fixture.namespace.api();
    for kind in Kind::BOTH {
        let name = kind.job_of("same", slot);
        let job = eventually(LIMIT, &format!("the Job {name}"), || jobs.get(&name)).await?;
        let owners: Vec<_> = job.owner_references().iter().map(|owner| &*owner.kind).collect();
        ensure!(owners == [&*kind.resource().kind], "{name}: {owners:?}");
    }
    environment
        .wait_for_events("same", &["SuccessfulCreate", "SuccessfulCreate"])
        .await?;
    environment.finish().await
}

#[tokio::test]
async fn a_crontab_keeps_the_names_of_its_jobs() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    environment.wait_until_time_left(10).await;
    let kind = Kind::CronTab;
    let created = environment.create(kind, "tab", "*/10 * * * *", json!({})).await?;
    let is_hashed = |status: &serde_json::Value| status["jobNameFormat"] == "Hashed";
    environment.status(kind, "tab", "the format", is_hashed).await?;
    // This is the status that a version before the field has written.
    let patch = Patch::Merge(json!({"status": {"jobNameFormat": null}}));
    let objects = environment.objects(kind);
    objects.patch_status("tab", &PatchParams::default(), &patch).await?;
    // Once the controller has observed a later change of the spec, its cache has the patch.
    let deadline = json!({"spec": {"startingDeadlineSeconds": 3_600}});
    environment.merge(kind, "tab", deadline).await?;
    let is_observed = |status: &serde_json::Value| status["observedGeneration"] == 2;
    environment
        .status(kind, "tab", "the second generation", is_observed)
        .await?;
    let slot = next_minute(created, 10);
    environment.clock.set(slot);
    environment
        .wait_for_jobs("tab", &[format!("tab-{}", slot.as_second() / 60)])
        .await?;
    let time = format!("{slot:.0}");
    let status = environment
        .status(kind, "tab", "the run", |status| status["lastScheduleTime"] == *time)
        .await?;
    ensure!(status.get("jobNameFormat").is_none(), "{status}");
    environment.finish().await
}
