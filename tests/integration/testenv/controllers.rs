//! What the controllers do is visible as soon as they have settled.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Namespace,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use portreeve_testing::Testenv;
use serde_json::{Value, json};

use super::environment::{client_and_testenv, ensure_gone};
use crate::fixtures::{
    dynamic_client::{DynamicClient, Policy},
    object_builder::{ObjectBuilder, config_map},
    test_crd::TestCrd,
};

#[tokio::test]
async fn a_child_is_deleted_after_its_owner() -> Result<()> {
    let (client, testenv) = client_and_testenv("cascade").await?;
    let owner = client.create(config_map("owner")).await?;
    let child = client.create(config_map("child").owned_by(&owner)).await?;
    let grandchild = client.create(config_map("grandchild").owned_by(&child)).await?;
    let other = client.create(config_map("other")).await?;
    client.delete(&owner, Policy::Background).await?;
    testenv.settled().await?;
    ensure_gone(&client, &[&owner, &child, &grandchild]).await?;
    client.get(&other).await?;
    Ok(())
}

#[tokio::test]
async fn an_owner_is_deleted_in_the_foreground_after_its_dependents() -> Result<()> {
    let (client, testenv) = client_and_testenv("foreground").await?;
    let owner = client.create(config_map("owner")).await?;
    let child = client.create(config_map("child").blocking(&owner, true)).await?;
    client.delete(&owner, Policy::Foreground).await?;
    testenv.settled().await?;
    ensure_gone(&client, &[&owner, &child]).await
}

#[tokio::test]
async fn an_orphan_stays_without_its_owner() -> Result<()> {
    let (client, testenv) = client_and_testenv("orphan").await?;
    let owner = client.create(config_map("owner")).await?;
    let child = client.create(config_map("child").owned_by(&owner)).await?;
    client.delete(&owner, Policy::Orphan).await?;
    testenv.settled().await?;
    ensure_gone(&client, &[&owner]).await?;
    let child = client.get(&child).await?;
    ensure!(child.owner_references().is_empty(), "{child:?}");
    Ok(())
}

#[tokio::test]
async fn a_deleted_namespace_goes_with_its_content() -> Result<()> {
    let (client, testenv) = client_and_testenv("namespace").await?;
    let content = client
        .create(config_map("content").finalizer("foregroundDeletion"))
        .await?;
    let namespaces: Api<Namespace> = Api::all(client.client().clone());
    namespaces.delete(client.name(), &DeleteParams::default()).await?;
    testenv.settled().await?;
    ensure_gone(&client, &[&content]).await?;
    let left = namespaces.get_opt(client.name()).await?;
    ensure!(left.is_none(), "{left:?}");
    Ok(())
}

/// Discovery shows a new resource later than the apiserver serves it.
#[tokio::test]
async fn the_dependents_of_a_new_custom_resource_are_deleted() -> Result<()> {
    let (client, testenv) = client_and_testenv("custom").await?;
    let definition = TestCrd::namespaced(&client).await?;
    let owner = client.create(definition.instance("owner")).await?;
    let child = client.create(config_map("child").owned_by(&owner)).await?;
    client.delete(&owner, Policy::Background).await?;
    testenv.settled().await?;
    ensure_gone(&client, &[&owner, &child]).await
}

#[tokio::test]
async fn a_finished_job_is_deleted_after_its_ttl() -> Result<()> {
    let (client, testenv) = client_and_testenv("ttl").await?;
    let expired = client.create(job("expired", 0)).await?;
    let fresh = client.create(job("fresh", 3600)).await?;
    let time = format!("{:.0}", Timestamp::now());
    let condition = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": time});
    let conditions = [condition("SuccessCriteriaMet"), condition("Complete")];
    let status = json!({"status": {"startTime": time, "completionTime": time, "conditions": conditions}});
    let jobs: Api<Job> = Api::namespaced(client.client().clone(), client.name());
    for name in ["expired", "fresh"] {
        let patch = Patch::Merge(&status);
        jobs.patch_status(name, &PatchParams::default(), &patch).await?;
    }
    testenv.settled().await?;
    ensure_gone(&client, &[&expired]).await?;
    client.get(&fresh).await?;
    // The other one waits for its time, which does not count.
    ensure_waiting(&client, testenv, "ttl_jobs_to_delete: ", "fresh in ").await
}

#[tokio::test]
async fn a_due_cronjob_has_its_job() -> Result<()> {
    let (client, testenv) = client_and_testenv("cronjob").await?;
    let api: Api<CronJob> = Api::namespaced(client.client().clone(), client.name());
    let template = json!({"spec": {"template": {"spec": {
        "containers": [{"name": "main", "image": "example.com/main:1"}], "restartPolicy": "Never"}}}});
    let cronjob = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "hourly"},
        "spec": {"schedule": "@hourly", "jobTemplate": template},
    });
    api.create(&PostParams::default(), &serde_json::from_value(cronjob)?)
        .await?;
    // So a run is due now.
    let last = Timestamp::now() - SignedDuration::from_hours(2);
    let status = json!({"status": {"lastScheduleTime": format!("{last:.0}")}});
    let parameters = PatchParams::default();
    api.patch_status("hourly", &parameters, &Patch::Merge(status)).await?;
    testenv.settled().await?;
    let jobs = client.list("batch/v1", "Job").await?;
    ensure!(jobs.len() == 1 && jobs[0].name_any().starts_with("hourly-"), "{jobs:?}");
    ensure_waiting(&client, testenv, "cronjob: ", "hourly in ").await
}

/// An object that somebody else's finalizer keeps does not count.
#[tokio::test]
async fn foreign_finalizers_do_not_count_and_are_listed() -> Result<()> {
    let (client, testenv) = client_and_testenv("finalizer").await?;
    let kept = client.create(config_map("kept").finalizer("example.com/kept")).await?;
    let owner = client.create(config_map("owner")).await?;
    let child = config_map("child").owned_by(&owner).finalizer("example.com/child");
    let child = client.create(child).await?;
    client.delete(&kept, Policy::Background).await?;
    client.delete(&owner, Policy::Background).await?;
    testenv.settled().await?;
    ensure_gone(&client, &[&owner]).await?;
    client.get(&kept).await?;
    let child = client.get(&child).await?;
    ensure!(child.metadata.deletion_timestamp.is_some(), "{child:?}");
    ensure_waiting(
        &client,
        testenv,
        "configmaps.v1 ",
        "kept is being deleted and has the finalizers example.com/kept",
    )
    .await?;
    ensure_waiting(
        &client,
        testenv,
        "configmaps.v1 ",
        "child is being deleted and has the finalizers example.com/child",
    )
    .await
}

/// A namespace waits for an object that somebody else's finalizer keeps.
#[tokio::test]
async fn a_namespace_that_waits_for_a_foreign_finalizer_does_not_count() -> Result<()> {
    let (client, testenv) = client_and_testenv("held").await?;
    let kept = client.create(config_map("kept").finalizer("example.com/kept")).await?;
    let namespaces: Api<Namespace> = Api::all(client.client().clone());
    namespaces.delete(client.name(), &DeleteParams::default()).await?;
    testenv.settled().await?;
    let held = namespaces.get(client.name()).await?;
    ensure!(held.metadata.deletion_timestamp.is_some(), "{held:?}");
    client.patch(&kept, json!({"metadata": {"finalizers": null}})).await?;
    testenv.settled().await?;
    let left = namespaces.get_opt(client.name()).await?;
    ensure!(left.is_none(), "{left:?}");
    Ok(())
}

fn job(name: &str, ttl: i32) -> ObjectBuilder {
    let template = json!({"spec": {
        "containers": [{"name": "main", "image": "example.com/main:1"}], "restartPolicy": "Never"}});
    let spec = json!({"ttlSecondsAfterFinished": ttl, "template": template});
    ObjectBuilder::new("batch/v1", "Job", name).with("spec", spec)
}

/// Checks that the verbose answer lists what an object of the namespace waits for.
async fn ensure_waiting(client: &DynamicClient, testenv: &Testenv, before: &str, after: &str) -> Result<()> {
    let (status, body) = testenv.get("/settled?timeout=50s&verbose").await?;
    ensure!(status == 200, "{status}: {body}");
    let body: Value = serde_json::from_str(&body)?;
    let waiting = body["waiting"].as_array().context("no list")?;
    let expected = format!("{before}{}/{after}", client.name());
    let mut items = waiting.iter().filter_map(Value::as_str);
    ensure!(items.any(|item| item.contains(&expected)), "{expected}: {body:#}");
    Ok(())
}
