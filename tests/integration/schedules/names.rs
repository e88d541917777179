//! The names of the Jobs of a CronTab, which never change.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::environment::ScheduleEnvironment;
use crate::fixtures::schedules::{Kind, next_minute};

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
