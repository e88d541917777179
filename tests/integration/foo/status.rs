//! Tests of the status of a Foo.

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use portreeve_api::conditions::{self, ConditionStatus};
use serde_json::json;

use crate::fixtures::{namespace::replicas, shared_daemon::fixture};

#[tokio::test]
async fn the_status_follows_the_deployment() -> Result<()> {
    let fixture = fixture("status").await?;
    fixture.ready_foo("web", 3).await?;
    for available in [1, 3, 0] {
        fixture.set_available("web", available).await?;
        let what = format!("{available} available");
        let foo = fixture
            .wait_for_foo("web", &what, |foo| {
                foo.status
                    .as_ref()
                    .is_some_and(|status| status.available_replicas == available)
            })
            .await?;
        let status = foo.status.context("the Foo has no status")?;
        ensure!(Some(status.observed_generation) == foo.metadata.generation);
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .map(|condition| {
                (
                    &*condition.type_,
                    condition.status,
                    &*condition.reason,
                    condition.observed_generation,
                )
            })
            .collect();
        let expected = [
            ("Ready", ConditionStatus::True, "Synced", 1),
            ("Conflict", ConditionStatus::False, "Synced", 1),
        ];
        ensure!(conditions == expected, "{conditions:?}");
    }
    Ok(())
}

/// An autoscaler reads and replaces the scale subresource, and finds the Pods by the selector in
/// it.
#[tokio::test]
async fn an_autoscaler_can_drive_a_foo() -> Result<()> {
    let fixture = fixture("scale").await?;
    let (_, deployment) = fixture.ready_foo("web", 1).await?;
    fixture.ready_foo("api", 1).await?;
    let foos = fixture.foos();
    let mut scale = foos.get_scale("web").await?;
    let selector = scale.status.as_ref().and_then(|status| status.selector.clone());
    ensure!(selector.as_deref() == Some("app=nginx,controller=web"), "{selector:?}");
    let labels = deployment.spec.and_then(|spec| spec.selector.match_labels);
    let labels = labels.context("the Deployment has no selector")?;
    let of_deployment: Vec<_> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
    ensure!(selector == Some(of_deployment.join(",")), "{selector:?}");
    let selected = ListParams::default().labels(&selector.unwrap_or_default());
    let selected = fixture.deployments().list(&selected).await?;
    let selected: Vec<_> = selected.iter().map(ResourceExt::name_any).collect();
    ensure!(selected == ["web"], "{selected:?}");

    scale.spec.get_or_insert_default().replicas = Some(4);
    foos.replace_scale("web", &PostParams::default(), &scale).await?;
    fixture
        .wait_for_deployment("web", "4 replicas", |found| replicas(found) == Some(4))
        .await?;
    fixture.set_available("web", 3).await?;
    fixture
        .wait_for_foo("web", "3 available", |foo| {
            foo.status.as_ref().is_some_and(|status| status.available_replicas == 3)
        })
        .await?;
    let scale = foos.get_scale("web").await?;
    let desired = scale.spec.and_then(|spec| spec.replicas);
    let current = scale.status.map(|status| (status.replicas, status.selector));
    ensure!(
        (desired, current) == (Some(4), Some((3, Some("app=nginx,controller=web".to_owned())))),
        "{desired:?}"
    );
    let patch = Patch::Merge(json!({"spec": {"replicas": 11}}));
    let rejected = foos.patch_scale("web", &PatchParams::default(), &patch).await;
    ensure!(rejected.is_err(), "11 replicas were accepted");
    Ok(())
}

#[tokio::test]
async fn the_status_is_written_only_when_it_changes() -> Result<()> {
    let fixture = fixture("quiet").await?;
    let (foo, _) = fixture.ready_foo("web", 2).await?;
    let mut changes = fixture.watch_foo(&foo).await?;
    for number in 0..5 {
        let touch = json!({"metadata": {"labels": {"touched": number.to_string()}}});
        fixture.merge_deployment("web", touch).await?;
        fixture
            .merge_deployment("web", json!({"spec": {"replicas": 9}}))
            .await?;
        fixture
            .wait_for_deployment("web", "2 replicas", |found| replicas(found) == Some(2))
            .await?;
    }
    // This changes the status. The watch must deliver no earlier change of the Foo.
    fixture.set_available("web", 2).await?;
    let later = changes.next().await?;
    let status = later.status.context("the Foo has no status")?;
    ensure!(
        status.available_replicas == 2,
        "the status was written without a change: {status:?}"
    );
    let before = foo.status.context("the Foo had no status")?;
    let time =
        |conditions| conditions::find_status_condition(conditions, "Ready").map(|ready| ready.last_transition_time);
    ensure!(
        time(&status.conditions) == time(&before.conditions),
        "lastTransitionTime changed without a transition"
    );
    Ok(())
}
