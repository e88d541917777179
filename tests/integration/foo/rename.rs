//! Tests of Foos that ask for another Deployment name.

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use portreeve_api::conditions::{self, Condition, ConditionStatus};
use portreeve_foo::api::Foo;
use serde_json::json;

use super::deployment::{desired, owned};
use crate::{
    faults::admission::{allow_deployment_deletions, reject_deployment_deletions},
    fixtures::{namespace::NamespaceFixture, shared_daemon::fixture},
};

async fn rename(fixture: &NamespaceFixture, foo: &str, deployment: &str) -> Result<Foo> {
    fixture
        .merge_foo(foo, json!({"spec": {"deploymentName": deployment}}))
        .await
}

fn renaming(foo: &Foo) -> Option<&Condition> {
    let status = foo.status.as_ref()?;
    conditions::find_status_condition(&status.conditions, "Renaming")
}

/// Waits until condition Renaming has this status and reason for the current generation.
async fn wait_for_renaming(
    fixture: &NamespaceFixture,
    name: &str,
    truth: ConditionStatus,
    reason: &str,
) -> Result<Foo> {
    let what = format!("its condition Renaming to be {truth:?} because of {reason}");
    let is_wanted = |foo: &Foo| {
        renaming(foo).is_some_and(|found| {
            (found.status, &*found.reason, Some(found.observed_generation)) == (truth, reason, foo.metadata.generation)
        })
    };
    fixture.wait_for_foo(name, &what, is_wanted).await
}

#[tokio::test]
async fn the_old_deployment_is_deleted_when_the_new_one_is_available() -> Result<()> {
    let fixture = fixture("renamed").await?;
    let (foo, old) = fixture.ready_foo("web", 2).await?;
    ensure!(renaming(&foo).is_none(), "{foo:?}");
    rename(&fixture, "web", "shop").await?;
    let foo = wait_for_renaming(&fixture, "web", ConditionStatus::True, "DeploymentNotObserved").await?;
    let message = renaming(&foo).map(|renaming| renaming.message.clone());
    let expected = "Keeping Deployment \"web\" until Deployment \"shop\" is available; \
                    no Deployment controller has observed it yet";
    ensure!(message.as_deref() == Some(expected), "{message:?}");
    fixture.set_available("shop", 1).await?;
    wait_for_renaming(&fixture, "web", ConditionStatus::True, "DeploymentUnavailable").await?;
    let kept = fixture.deployments().get("web").await?;
    ensure!(kept.resource_version() == old.resource_version(), "{kept:?}");

    fixture.set_available("shop", 2).await?;
    fixture.wait_for_no_deployment("web").await?;
    let foo = wait_for_renaming(&fixture, "web", ConditionStatus::False, "Renamed").await?;
    let shop = fixture.deployments().get("shop").await?;
    ensure!(owned(&shop) == desired(&foo), "{:#}", owned(&shop));
    fixture.wait_for_events("web", &["Synced", "Renaming"]).await?;
    Ok(())
}

/// The new Deployment is not affected, so the Foo stays ready.
#[tokio::test]
async fn a_rejected_deletion_of_the_old_deployment_is_reported_and_retried() -> Result<()> {
    let fixture = fixture("undeletable").await?;
    fixture.ready_foo("web", 2).await?;
    reject_deployment_deletions(&fixture).await?;
    rename(&fixture, "web", "shop").await?;
    wait_for_renaming(&fixture, "web", ConditionStatus::True, "DeploymentNotObserved").await?;
    fixture.set_available("shop", 2).await?;
    let foo = wait_for_renaming(&fixture, "web", ConditionStatus::True, "FailedDelete").await?;
    let message = renaming(&foo).map(|renaming| &*renaming.message);
    ensure!(
        message.is_some_and(|message| message.contains("Deployments are kept")),
        "{message:?}"
    );
    let status = foo.status.as_ref().context("the Foo has no status")?;
    let ready = conditions::find_status_condition(&status.conditions, "Ready");
    let ready = ready.map(|ready| (ready.status, &*ready.reason));
    ensure!(ready == Some((ConditionStatus::True, "Synced")), "{ready:?}");
    ensure!(status.available_replicas == 2, "{status:?}");

    allow_deployment_deletions(&fixture).await?;
    fixture.wait_for_no_deployment("web").await?;
    wait_for_renaming(&fixture, "web", ConditionStatus::False, "Renamed").await?;
    // The Foo was ready all the time, so there is no second Synced event.
    let events = ["Synced", "Renaming", "FailedDelete"];
    fixture.wait_for_events("web", &events).await?;
    Ok(())
}

/// The status of the new Deployment belongs to an earlier generation: the old one stays.
#[tokio::test]
async fn a_replica_count_that_grows_during_a_rename_is_waited_for() -> Result<()> {
    let fixture = fixture("growing").await?;
    fixture.ready_foo("web", 1).await?;
    let both = json!({"spec": {"deploymentName": "shop", "replicas": 2}});
    fixture.merge_foo("web", both).await?;
    wait_for_renaming(&fixture, "web", ConditionStatus::True, "DeploymentNotObserved").await?;
    fixture.set_available("shop", 1).await?;
    wait_for_renaming(&fixture, "web", ConditionStatus::True, "DeploymentUnavailable").await?;
    fixture.merge_foo("web", json!({"spec": {"replicas": 1}})).await?;
    // One Pod is available, but no Deployment controller has observed that one is enough.
    let foo = wait_for_renaming(&fixture, "web", ConditionStatus::True, "DeploymentUnavailable").await?;
    ensure!(foo.spec.replicas == 1, "{foo:?}");
    fixture.deployments().get("web").await?;
    fixture.set_available("shop", 1).await?;
    fixture.wait_for_no_deployment("web").await
}

#[tokio::test]
async fn a_foo_that_is_created_for_a_kept_name_gets_it_at_once() -> Result<()> {
    let fixture = fixture("wanted").await?;
    fixture.ready_foo("first", 1).await?;
    rename(&fixture, "first", "elsewhere").await?;
    wait_for_renaming(&fixture, "first", ConditionStatus::True, "DeploymentNotObserved").await?;
    fixture.create_foo("second", "first", 2).await?;
    fixture
        .wait_for_condition("second", "Ready", ConditionStatus::True)
        .await?;
    wait_for_renaming(&fixture, "first", ConditionStatus::False, "Renamed").await?;
    Ok(())
}

/// Waits until a Foo is ready, and ensures that this Deployment is the one that it asks for.
async fn wait_for_own_deployment(fixture: &NamespaceFixture, foo: &str, deployment: &str) -> Result<()> {
    let foo = fixture.wait_for_condition(foo, "Ready", ConditionStatus::True).await?;
    let found = fixture.deployments().get(deployment).await?;
    ensure!(owned(&found) == desired(&foo), "{:#}", owned(&found));
    Ok(())
}

/// Renames Foos one after the other, each to the next one's name and the last one to the first
/// one's, and waits until each has the Deployment that it asks for. None ever becomes available.
async fn exchange(fixture: &NamespaceFixture, names: &[&str]) -> Result<()> {
    for name in names {
        fixture.ready_foo(name, 2).await?;
        fixture.set_available(name, 2).await?;
    }
    let next = names.iter().cycle().skip(1);
    let renames: Vec<_> = names.iter().zip(next).collect();
    let (closing, others) = renames.split_last().context("there are no Foos")?;
    for (foo, deployment) in others {
        rename(fixture, foo, deployment).await?;
        fixture
            .wait_for_condition(foo, "Conflict", ConditionStatus::True)
            .await?;
        let kept = fixture.deployments().get(foo).await?;
        ensure!(kept.metadata.deletion_timestamp.is_none(), "{kept:?}");
    }
    rename(fixture, closing.0, closing.1).await?;
    for (foo, deployment) in &renames {
        wait_for_own_deployment(fixture, foo, deployment).await?;
    }
    let deployments = fixture.deployments().list(&ListParams::default()).await?.items;
    ensure!(deployments.len() == names.len(), "{deployments:?}");
    Ok(())
}

#[tokio::test]
async fn three_foos_exchange_names() -> Result<()> {
    exchange(&fixture("exchanged").await?, &["red", "yellow", "blue"]).await
}

/// If the third Foo got the name first, one of the two would be left without a Deployment.
#[tokio::test]
async fn two_foos_swap_names_once_no_third_one_asks_for_them() -> Result<()> {
    let fixture = fixture("contested").await?;
    let (_, blue) = fixture.ready_foo("blue", 2).await?;
    let (_, green) = fixture.ready_foo("green", 2).await?;
    fixture.create_foo("third", "blue", 1).await?;
    fixture
        .wait_for_condition("third", "Conflict", ConditionStatus::True)
        .await?;
    rename(&fixture, "blue", "green").await?;
    rename(&fixture, "green", "blue").await?;
    for (foo, deployment) in [("blue", "green"), ("green", "blue")] {
        fixture
            .wait_for_condition(foo, "Conflict", ConditionStatus::True)
            .await?;
        let found = wait_for_renaming(&fixture, foo, ConditionStatus::True, "ErrResourceExists").await?;
        let message = renaming(&found).map(|renaming| renaming.message.clone());
        let expected = format!("Keeping Deployment {foo:?} until Deployment {deployment:?} is available");
        ensure!(message.as_ref() == Some(&expected), "{message:?}");
    }
    // A later Foo is ready after the renames were reconciled, because the queue is first in, first
    // out.
    fixture.ready_foo("later", 1).await?;
    for old in [&blue, &green] {
        let kept = fixture.deployments().get(&old.name_any()).await?;
        ensure!(kept.resource_version() == old.resource_version(), "{kept:?}");
    }
    fixture.foos().delete("third", &DeleteParams::default()).await?;
    wait_for_own_deployment(&fixture, "blue", "green").await?;
    wait_for_own_deployment(&fixture, "green", "blue").await
}

/// In a conflict with a Deployment that no Foo gives up, the old Deployment is all that runs.
#[tokio::test]
async fn a_foo_in_conflict_keeps_its_deployment_although_another_foo_asks_for_the_name() -> Result<()> {
    let fixture = fixture("kept").await?;
    let (_, old) = fixture.ready_foo("web", 2).await?;
    fixture.create_foreign("taken").await?;
    rename(&fixture, "web", "taken").await?;
    wait_for_renaming(&fixture, "web", ConditionStatus::True, "ErrResourceExists").await?;
    fixture.create_foo("other", "web", 1).await?;
    fixture
        .wait_for_condition("other", "Conflict", ConditionStatus::True)
        .await?;
    let kept = fixture
        .merge_deployment("web", json!({"metadata": {"labels": {"touched": "yes"}}}))
        .await?;
    // A later Foo is ready after the change was reconciled, because the queue is first in, first
    // out.
    fixture.ready_foo("later", 1).await?;
    let now = fixture.deployments().get("web").await?;
    ensure!(
        (now.uid(), now.resource_version()) == (old.uid(), kept.resource_version()),
        "{now:?}"
    );
    fixture.delete_deployment("taken").await?;
    fixture
        .wait_for_condition("other", "Ready", ConditionStatus::True)
        .await?;
    Ok(())
}
