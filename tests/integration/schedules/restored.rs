//! CronTabs that are recreated from a backup.

use anyhow::{Context, Result, ensure};
use kube::{ResourceExt, api::PostParams};
use portreeve_crontab::api::RUN_NOW;
use serde_json::{Value, json};

use super::environment::ScheduleEnvironment;
use crate::fixtures::schedules::Kind;

fn run_now(value: &str) -> Value {
    json!({"metadata": {"annotations": {RUN_NOW: value}}})
}

#[tokio::test]
async fn a_restored_crontab_does_not_repeat_its_last_requested_run() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let kind = Kind::CronTab;
    for (name, suspend) in [("active", false), ("suspended", true)] {
        let more = json!({"suspend": suspend});
        environment.create(kind, name, "@yearly", more).await?;
        environment.wait_until_reconciled(kind, name).await?;
        environment.merge(kind, name, run_now("first")).await?;
        let has_run = |value: &'static str| move |status: &Value| status["lastRunNow"] == value;
        environment.status(kind, name, "the run", has_run("first")).await?;
        environment.wait_for_events(name, &["SuccessfulCreate"]).await?;

        let objects = environment.objects(kind);
        let mut backup = objects.get(name).await?;
        environment.delete(kind, name).await?;
        // As `kubectl create` does with the output of `kubectl get -o yaml`.
        backup.metadata.resource_version = None;
        backup.metadata.managed_fields = None;
        let restored = objects.create(&PostParams::default(), &backup).await?;
        ensure!(restored.data.get("status").is_none(), "the apiserver kept the status");
        let uid = restored.uid().context("the object has no UID")?;
        ensure!(Some(&uid) != backup.metadata.uid.as_ref(), "the object has its old UID");
        environment.status(kind, name, "the value", has_run("first")).await?;
        environment
            .wait_for_events(name, &["SuccessfulCreate", "SkippedRunNow"])
            .await?;

        environment.merge(kind, name, run_now("second")).await?;
        environment.status(kind, name, "the run", has_run("second")).await?;
        let mut jobs = environment.jobs(name).await?;
        jobs.retain(|job| job.owner_references().iter().any(|owner| owner.uid == uid));
        let values: Vec<_> = jobs.iter().map(|job| &*job.annotations()[RUN_NOW]).collect();
        ensure!(values == ["second"], "{values:?}");
    }
    environment.finish().await
}
