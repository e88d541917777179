//! Tests which CronTabs the apiserver accepts and which it rejects, with a message that names the
//! field and the fix.

use anyhow::{Context, Result, bail, ensure};
use kube::{
    api::{Patch, PatchParams, PostParams},
    core::ObjectMeta,
};
use portreeve_api::{CRONTABS, ConcurrencyPolicy, CronTab, CronTabSpec, CronTabStatus, DstPolicyName, JobReference};
use serde_json::{Value, json};

use crate::{CronTabFixture, fixture, spec};

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
        "dstPolicy": "Once",
    });
    ensure!(created["spec"] == expected, "{created:#}");
    ensure!(created.get("status").is_none(), "{created:#}");

    let read = fixture.crontabs().get("backup").await?;
    let read = read.spec.context("the spec is missing")?;
    ensure!(read.schedule == "@daily");
    ensure!(read.job_template.restart_policy.as_deref() == Some("Never"));
    ensure!(read.concurrency_policy == ConcurrencyPolicy::Allow && read.dst_policy == DstPolicyName::Once);
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
        active: vec![JobReference {
            api_version: "batch/v1".to_owned(),
            kind: "Job".to_owned(),
            name: "typed-1".to_owned(),
            namespace: fixture.namespace.name().to_owned(),
            uid: "1".to_owned(),
        }],
        active_count: 1,
        next_schedule_time: Some("2026-03-01T00:00:00.5Z".parse()?),
        last_run_now: Some("once".to_owned()),
        ..CronTabStatus::default()
    };
    let patched = patch_status(&crontabs, &first).await?;
    let time = patched.next_schedule_time.context("nextScheduleTime is missing")?;
    ensure!(time.to_string() == "2026-03-01T00:00:00Z", "{time}");
    ensure!(patched.active == first.active && patched.last_run_now == first.last_run_now);

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

#[tokio::test]
async fn limits_of_the_allowed_values_are_accepted() -> Result<()> {
    let fixture = fixture("bounds").await?;
    let least = json!({
        "successfulJobsHistoryLimit": 0,
        "failedJobsHistoryLimit": 0,
        "startingDeadlineSeconds": 0,
        "backoffLimit": 0,
        "activeDeadlineSeconds": 1,
        "ttlSecondsAfterFinished": 0,
    });
    fixture.create(&"a".repeat(52), &spec(least)).await?;
    fixture
        .create(
            "long",
            &spec(json!({"schedule": "0".repeat(1024), "timeZone": "a".repeat(64)})),
        )
        .await?;
    // Template engines leave nulls for values that are not set.
    let nothing = json!({"timeZone": null, "suspend": null, "concurrencyPolicy": null, "backoffLimit": null});
    let created = fixture.create("nulls", &spec(nothing)).await?;
    ensure!(created["spec"]["suspend"] == false, "{created:#}");
    ensure!(created["spec"].get("timeZone").is_none(), "{created:#}");
    Ok(())
}

/// Creates one CronTab for each row, with these fields set, and checks that the error contains the
/// given parts.
async fn check_rejections(prefix: &str, table: &[(Value, &[&str])]) -> Result<()> {
    let fixture = fixture(prefix).await?;
    for (fields, parts) in table {
        assert_rejected(&fixture, "a", fields, parts).await?;
    }
    Ok(())
}

async fn assert_rejected(fixture: &CronTabFixture, name: &str, fields: &Value, parts: &[&str]) -> Result<()> {
    let result = fixture.create(name, &spec(fields.clone())).await;
    let Err(kube::Error::Api(status)) = result else {
        bail!("{name} {fields} was not rejected: {result:?}");
    };
    ensure!(status.code == 422, "{name} {fields}: {status:?}");
    for part in parts {
        ensure!(status.message.contains(part), "{name} {fields}: {}", status.message);
    }
    Ok(())
}

#[tokio::test]
async fn name_that_is_too_long_for_job_names_is_rejected() -> Result<()> {
    let fixture = fixture("names").await?;
    let parts = ["metadata.name", "at most 52 characters", "choose a shorter one"];
    assert_rejected(&fixture, &"a".repeat(53), &json!({}), &parts).await
}

#[tokio::test]
async fn out_of_range_error_names_the_field_and_the_limit() -> Result<()> {
    let table: [(Value, &[&str]); 7] = [
        (
            json!({"successfulJobsHistoryLimit": -1}),
            &["spec.successfulJobsHistoryLimit", "or equal to 0"],
        ),
        (
            json!({"failedJobsHistoryLimit": -1}),
            &["spec.failedJobsHistoryLimit", "or equal to 0"],
        ),
        (
            json!({"failedJobsHistoryLimit": 2_147_483_648_i64}),
            &["spec.failedJobsHistoryLimit", "int32"],
        ),
        (
            json!({"startingDeadlineSeconds": -1}),
            &["spec.startingDeadlineSeconds", "or equal to 0"],
        ),
        (json!({"backoffLimit": -1}), &["spec.backoffLimit", "or equal to 0"]),
        (
            json!({"activeDeadlineSeconds": 0}),
            &["spec.activeDeadlineSeconds", "or equal to 1"],
        ),
        (
            json!({"ttlSecondsAfterFinished": -1}),
            &["spec.ttlSecondsAfterFinished", "or equal to 0"],
        ),
    ];
    check_rejections("numbers", &table).await
}

#[tokio::test]
async fn invalid_schedule_or_policy_error_names_the_field_and_the_fix() -> Result<()> {
    let zone = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
    let table: [(Value, &[&str]); 10] = [
        (json!({"schedule": ""}), &["spec.schedule", "at least 1 chars"]),
        (json!({"schedule": null}), &["spec.schedule", "Required"]),
        (json!({"schedule": "0".repeat(1025)}), &["spec.schedule", "1024"]),
        (json!({"schedule": "TZ=UTC @daily"}), &["spec.schedule", zone]),
        (json!({"schedule": "CRON_TZ=UTC 0 * * * *"}), &["spec.schedule", zone]),
        (json!({"timeZone": ""}), &["spec.timeZone", "at least 1 chars"]),
        (json!({"timeZone": "a".repeat(65)}), &["spec.timeZone", "64"]),
        (json!({"suspend": "yes"}), &["spec.suspend", "boolean"]),
        (
            json!({"concurrencyPolicy": "Queue"}),
            &["spec.concurrencyPolicy", r#""Allow", "Forbid", "Replace""#],
        ),
        (
            json!({"dstPolicy": "Twice"}),
            &["spec.dstPolicy", r#""Once", "Kubernetes""#],
        ),
    ];
    check_rejections("schedules", &table).await
}

#[tokio::test]
async fn templates_that_are_invalid_for_jobs_are_rejected() -> Result<()> {
    let template = |field: &str, value: Value| {
        let mut template = json!({"containers": [{"name": "a", "image": "a"}]});
        template[field] = value;
        json!({"jobTemplate": template})
    };
    let ephemeral = template("ephemeralContainers", json!([{"name": "b", "image": "b"}]));
    let policies = r#""Never", "OnFailure""#;
    let table: [(Value, &[&str]); 5] = [
        (json!({"jobTemplate": null}), &["spec.jobTemplate", "Required"]),
        (json!({"jobTemplate": {}}), &["spec.jobTemplate.containers", "Required"]),
        (
            template("containers", json!([])),
            &["spec.jobTemplate.containers", "at least 1 items"],
        ),
        (
            template("restartPolicy", "Always".into()),
            &["spec.jobTemplate.restartPolicy", policies],
        ),
        (ephemeral, &["spec.jobTemplate.ephemeralContainers", "at most 0 items"]),
    ];
    check_rejections("pods", &table).await
}

#[tokio::test]
async fn unknown_field_is_rejected_under_strict_validation() -> Result<()> {
    let fixture = fixture("strict").await?;
    let misspelt = json!({"containers": [{"name": "a", "image": "a", "comand": ["a"]}]});
    let misplaced = json!({"template": {}, "containers": [{"name": "a", "image": "a"}]});
    let table = [
        (json!({"scheduel": "@daily"}), "spec.scheduel"),
        (
            json!({"jobTemplate": misspelt}),
            "spec.jobTemplate.containers[0].comand",
        ),
        (json!({"jobTemplate": misplaced}), "spec.jobTemplate.template"),
    ];
    for (fields, field) in table {
        let result = fixture.create("a", &spec(fields)).await;
        let Err(kube::Error::Api(status)) = result else {
            bail!("{field} was not rejected: {result:?}");
        };
        ensure!(
            status.message.contains(&format!("unknown field \"{field}\"")),
            "{}",
            status.message
        );
    }
    Ok(())
}
