//! Jobs of other namespaces, whose owner references anyone may write who may create Jobs there.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::{Value, json};

use super::environment::ScheduleEnvironment;
use crate::fixtures::{
    namespace::NamespaceFixture,
    schedules::{Kind, minutes, next_minute},
};

/// Returns a Job for a scheduled time of the schedule, as its controller would create it.
fn forged(kind: Kind, name: &str, uid: &str, slot: Timestamp) -> Result<Job> {
    let resource = kind.resource();
    let owner = json!({"apiVersion": resource.api_version(), "kind": resource.kind, "name": name, "uid": uid,
        "controller": true});
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": kind.job_of(name, slot),
            "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": format!("{slot:.0}")},
            "ownerReferences": [owner],
        },
        "spec": {"template": {"spec": {
            "containers": [{"name": "main", "image": "example.com/main:1"}], "restartPolicy": "Never"}}},
    });
    Ok(serde_json::from_value(job)?)
}

#[tokio::test]
async fn jobs_of_another_namespace_do_not_count() -> Result<()> {
    let environment = ScheduleEnvironment::start().await?;
    let other = NamespaceFixture::new(&environment.plane, "other").await?;
    let others: Api<Job> = other.namespace.api();
    environment.wait_until_time_left(10).await;
    let mut first = Timestamp::MIN;
    let mut kept = Vec::new();
    for kind in Kind::BOTH {
        for policy in ["Forbid", "Replace"] {
            let name = format!("{}-{}", kind.name(), policy.to_lowercase());
            let more = json!({"concurrencyPolicy": policy});
            let created = environment.create(kind, &name, "*/10 * * * *", more).await?;
            environment.wait_until_reconciled(kind, &name).await?;
            first = first.max(next_minute(created, 10));
            let uid = environment.objects(kind).get(&name).await?.uid();
            let uid = uid.context("the object has no UID")?;
            // One has the name of the next Job, and another one is active already.
            for slot in [first, first - minutes(10)] {
                let job = others
                    .create(&PostParams::default(), &forged(kind, &name, &uid, slot)?)
                    .await?;
                kept.push(job);
            }
        }
    }
    environment.clock.set(first);
    for kind in Kind::BOTH {
        for policy in ["forbid", "replace"] {
            let name = format!("{}-{policy}", kind.name());
            let job = kind.job_of(&name, first);
            let jobs = environment.wait_for_jobs(&name, std::slice::from_ref(&job)).await?;
            let uid = jobs[0].uid();
            let is_alone = |status: &Value| {
                let active = status["active"].as_array().map(Vec::as_slice).unwrap_or_default();
                matches!(active, [only] if only["uid"].as_str() == uid.as_deref())
            };
            environment.status(kind, &name, "only its own Job", is_alone).await?;
        }
    }
    for job in kept {
        let name = job.name_any();
        let found = others.get(&name).await?;
        ensure!(
            found.metadata.resource_version == job.metadata.resource_version,
            "{name} has changed"
        );
    }
    environment.finish().await
}
