//! Scenarios that make each controller use every verb of its role.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::DeleteParams};
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::eventually;
use serde_json::json;

use crate::fixtures::{
    LIMIT,
    clock::OffsetClock,
    jobs::Jobs,
    namespace::{NamespaceFixture, replicas},
    schedules::{Kind, job_of, minutes, next_minute},
};

/// Makes the controller create, repair, recreate and delete a Deployment, and send the same event
/// twice.
pub(super) async fn foo(fixture: &NamespaceFixture) -> Result<()> {
    fixture.ready_foo("web", 1).await?;
    fixture
        .merge_deployment("web", json!({"spec": {"replicas": 3}}))
        .await?;
    fixture
        .wait_for_deployment("web", "one replica", |found| replicas(found) == Some(1))
        .await?;
    fixture.delete_deployment("web").await?;
    fixture
        .wait_for_deployment("web", "a recreated Deployment", |found| replicas(found) == Some(1))
        .await?;
    let renamed = |name: &str| fixture.merge_foo("web", json!({"spec": {"deploymentName": name}}));
    renamed("shop").await?;
    fixture.wait_for_no_deployment("web").await?;
    fixture.create_foreign("taken").await?;
    for (name, type_) in [("taken", "Conflict"), ("shop", "Ready"), ("taken", "Conflict")] {
        renamed(name).await?;
        fixture.wait_for_condition("web", type_, ConditionStatus::True).await?;
    }
    eventually(LIMIT, "a second event about the conflict", || async {
        let events = fixture.events_on("web").await?;
        ensure!(events.iter().any(|event| event.series.is_some()), "{events:?}");
        Ok(())
    })
    .await
}

/// Makes the controller start a Job, clean it up when it has finished, and start another Job, which
/// the test deletes while it runs.
pub(super) async fn schedule(fixture: &NamespaceFixture, clock: &OffsetClock, kind: Kind) -> Result<()> {
    let namespace = &fixture.namespace;
    let objects = kind.objects(namespace);
    let (jobs, name): (Api<Job>, _) = (namespace.api(), kind.name());
    let keep_none = json!({"successfulJobsHistoryLimit": 0});
    let created = kind.create(namespace, name, "0 * * * *", &keep_none).await?;
    let created = created
        .metadata
        .creation_timestamp
        .context("the object has no creation timestamp")?;
    let wait_for_active = |count: usize| {
        let objects = objects.clone();
        async move {
            eventually(LIMIT, &format!("{count} active Jobs in the status"), || async {
                let status = objects.get(name).await?.data["status"].clone();
                let found = status["active"].as_array().map_or(0, Vec::len);
                ensure!(found == count, "{status}");
                Ok(())
            })
            .await
        }
    };

    let slot = next_minute(created.0, 60);
    clock.set(slot);
    wait_for_active(1).await?;
    let job = job_of(name, slot);
    Jobs::of(fixture).end(&job, slot, true).await?;
    eventually(LIMIT, "the Job to be cleaned up", || async {
        ensure!(jobs.get_opt(&job).await?.is_none(), "the Job still exists");
        anyhow::Ok(())
    })
    .await?;
    wait_for_active(0).await?;

    let slot = slot + minutes(60);
    clock.set(slot);
    wait_for_active(1).await?;
    jobs.delete(&job_of(name, slot), &DeleteParams::background()).await?;
    wait_for_active(0).await
}

/// Makes the controller keep a finished Job for its TTL and then delete it.
pub(super) async fn ttl(fixture: &NamespaceFixture, clock: &OffsetClock) -> Result<()> {
    let jobs = Jobs::of(fixture);
    let created = jobs.create("once", json!({"ttlSecondsAfterFinished": 600})).await?;
    let created = created
        .metadata
        .creation_timestamp
        .context("the Job has no creation timestamp")?
        .0;
    jobs.end("once", created, true).await?;
    clock.set(created + minutes(10));
    eventually(LIMIT, "the Job to be deleted", || async {
        let found = jobs.0.get("once").await?;
        ensure!(
            found.metadata.deletion_timestamp.is_some(),
            "the Job is not being deleted"
        );
        anyhow::Ok(())
    })
    .await
}
