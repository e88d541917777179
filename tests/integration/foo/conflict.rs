//! Tests of Deployments that the Foo does not control.

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, PropagationPolicy},
};
use portreeve_api::conditions::{self, ConditionStatus};
use serde_json::json;

use crate::fixtures::{namespace::replicas, shared_daemon::fixture};

#[tokio::test]
async fn a_foreign_deployment_is_never_modified_and_the_foo_recovers_after_its_deletion() -> Result<()> {
    let fixture = fixture("foreign").await?;
    let mut foreign = fixture.create_foreign("web").await?;
    fixture.create_foo("web", "web", 2).await?;
    let foo = fixture
        .wait_for_condition("web", "Conflict", ConditionStatus::True)
        .await?;
    let status = foo.status.unwrap_or_default();
    let ready = conditions::find_status_condition(&status.conditions, "Ready")
        .map(|ready| (ready.status, ready.reason.clone()));
    ensure!(
        ready == Some((ConditionStatus::False, "ErrResourceExists".to_owned())),
        "{ready:?}"
    );
    // Each change of the Deployment makes the controller reconcile the Foo again.
    for number in 0..5 {
        let touch = json!({"metadata": {"labels": {"touched": number.to_string()}}, "spec": {"replicas": number}});
        foreign = fixture.merge_deployment("web", touch).await?;
    }
    fixture.merge_foo("web", json!({"spec": {"replicas": 3}})).await?;
    fixture
        .wait_for_condition("web", "Conflict", ConditionStatus::True)
        .await?;
    let now = fixture.deployments().get("web").await?;
    ensure!(now.resource_version() == foreign.resource_version(), "{now:?}");
    ensure!(now.managed_fields() == foreign.managed_fields(), "{now:?}");

    fixture.delete_deployment("web").await?;
    let ours = fixture
        .wait_for_deployment("web", "the Foo's", |found| replicas(found) == Some(3))
        .await?;
    ensure!(
        ours.owner_references()
            .iter()
            .any(|owner| Some(&owner.uid) == foo.metadata.uid.as_ref())
    );
    let events = fixture.wait_for_events("web", &["ErrResourceExists", "Synced"]).await?;
    ensure!(events[0].type_.as_deref() == Some("Warning"));
    let note = r#"Resource "web" already exists and is not managed by Foo"#;
    ensure!(events[0].note.as_deref() == Some(note), "{:?}", events[0].note);
    fixture
        .wait_for_condition("web", "Conflict", ConditionStatus::False)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_deployment_that_loses_its_owner_reference_becomes_foreign() -> Result<()> {
    let fixture = fixture("disowned").await?;
    fixture.ready_foo("web", 2).await?;
    let disown = json!({"metadata": {"ownerReferences": null}, "spec": {"replicas": 9}});
    let disowned = fixture.merge_deployment("web", disown).await?;
    fixture
        .wait_for_condition("web", "Conflict", ConditionStatus::True)
        .await?;
    fixture.wait_for_events("web", &["Synced", "ErrResourceExists"]).await?;
    let now = fixture.deployments().get("web").await?;
    ensure!(now.resource_version() == disowned.resource_version(), "{now:?}");
    Ok(())
}

#[tokio::test]
async fn a_deployment_of_an_earlier_foo_of_the_same_name_is_foreign() -> Result<()> {
    let fixture = fixture("namesake").await?;
    let (earlier, orphan) = fixture.ready_foo("web", 2).await?;
    // No garbage collector runs here, so the Deployment remains, as if the deletion had orphaned
    // it.
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    fixture.foos().delete("web", &parameters).await?;
    let later = fixture.create_foo("web", "web", 5).await?;
    ensure!(later.uid() != earlier.uid());
    fixture
        .wait_for_condition("web", "Conflict", ConditionStatus::True)
        .await?;
    let now = fixture.deployments().get("web").await?;
    ensure!(now.resource_version() == orphan.resource_version(), "{now:?}");
    fixture.delete_deployment("web").await?;
    fixture
        .wait_for_deployment("web", "the later Foo's", |found| replicas(found) == Some(5))
        .await?;
    Ok(())
}
