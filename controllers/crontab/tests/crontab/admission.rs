//! Tests what the apiserver stores of a CronTab. `tests/integration/admission` has the table of
//! those that it rejects.

use anyhow::{Context, Result, ensure};
use kube::{
    api::{Patch, PatchParams, PostParams},
    core::ObjectMeta,
};
use portreeve_crontab::api::{
    CRONTABS, ConcurrencyPolicy, CronTab, CronTabSpec, CronTabStatus, JobReference, RunsStatus,
};
use serde_json::json;

use crate::{fixture, spec};

#[tokio::test]
async fn example_is_accepted_and_defaulted() -> Result<()> {
    let fixture = fixture("example").await?;
    let created = fixture.create("backup", &spec(json!({}))).await?;
    let expected = json!({
        "schedule": "@daily",
        "jobTemplate": {"containers": [{"image": "mybackupscript:v9", "name": "backup"}], "restartPolicy": "Never"},
        "suspend": false,
        "concurrencyPolicy": "Allow",
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 1,
    });
    ensure!(created["spec"] == expected, "{created:#}");
    ensure!(created.get("status").is_none(), "{created:#}");

    let read = fixture.crontabs().get("backup").await?;
    let read = read.spec.context("the spec is missing")?;
    ensure!(read.timing.schedule == "@daily");
    ensure!(read.job_template.restart_policy.as_deref() == Some("Never"));
    ensure!(read.run_policy.concurrency_policy == ConcurrencyPolicy::Allow && read.timing.dst_policy.is_none());
    Ok(())
}

#[tokio::test]
async fn typed_object_is_created_and_its_status_patched() -> Result<()> {
    let fixture = fixture("typed").await?;
    let crontabs = fixture.crontabs();
    let typed_spec: CronTabSpec = serde_json::from_value(spec(json!({"timeZone": "Europe/Zurich"})))?;
    let created = crontabs
        .create(&PostParams::default(), &CronTab::new("typed", typed_spec))
        .await?;
    ensure!(created.metadata.generation == Some(1), "{created:?}");

    let first = CronTabStatus {
        runs: RunsStatus {
            active: vec![JobReference {
                api_version: "batch/v1".to_owned(),
                kind: "Job".to_owned(),
                name: "typed-1".to_owned(),
                namespace: fixture.namespace.name().to_owned(),
                uid: "1".to_owned(),
            }],
            active_count: 1,
            last_run_now: Some("once".to_owned()),
            ..RunsStatus::default()
        },
        next_schedule_time: Some("2026-03-01T00:00:00.5Z".parse()?),
        ..CronTabStatus::default()
    };
    let patched = patch_status(&crontabs, &first).await?;
    let time = patched.next_schedule_time.context("nextScheduleTime is missing")?;
    ensure!(time.to_string() == "2026-03-01T00:00:00Z", "{time}");
    ensure!(patched.runs == first.runs);

    // An absent value is written as null, and the apiserver stores no null.
    let second = CronTabStatus::default();
    ensure!(patch_status(&crontabs, &second).await? == second);
    let path = CRONTABS.collection_path(Some(fixture.namespace.name())) + "/typed";
    let stored = fixture
        .request(http::Method::GET, &path, "application/json", None)
        .await?;
    let expected = json!({"active": [], "activeCount": 0, "missedRuns": 0, "observedGeneration": 0, "conditions": []});
    ensure!(stored["status"] == expected, "{stored:#}");
    Ok(())
}

async fn patch_status(crontabs: &kube::Api<CronTab>, status: &CronTabStatus) -> Result<CronTabStatus> {
    let patch = Patch::Merge(json!({"status": status}));
    let patched = crontabs.patch_status("typed", &PatchParams::default(), &patch).await?;
    patched.status.context("the status is missing")
}

#[tokio::test]
async fn crontab_without_a_spec_is_stored() -> Result<()> {
    let fixture = fixture("empty").await?;
    let empty = CronTab {
        metadata: ObjectMeta {
            name: Some("empty".to_owned()),
            ..ObjectMeta::default()
        },
        ..CronTab::default()
    };
    let created = fixture.crontabs().create(&PostParams::default(), &empty).await?;
    ensure!(created.spec.is_none(), "{created:?}");
    Ok(())
}

/// Template engines leave nulls for values that are not set.
#[tokio::test]
async fn nulls_are_dropped() -> Result<()> {
    let fixture = fixture("nulls").await?;
    let nothing = json!({"timeZone": null, "suspend": null, "concurrencyPolicy": null, "backoffLimit": null});
    let created = fixture.create("nulls", &spec(nothing)).await?;
    ensure!(created["spec"]["suspend"] == false, "{created:#}");
    ensure!(created["spec"].get("timeZone").is_none(), "{created:#}");
    Ok(())
}
