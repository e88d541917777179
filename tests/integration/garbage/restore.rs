//! Tests of an etcd that is restored from a copy, with the same UIDs.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, ensure};
use kube::core::DynamicObject;
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Repeat, eventually};
use serde_json::json;

use super::collector::Collector;
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy},
    expected_objects::ExpectedObjects,
    object_builder::{config_map, secret},
};

/// The flags of a Lease that is held through a restore, however long the servers take to start.
pub(crate) const HELD_LEASE: [&str; 3] = [
    "--leader-elect-lease-duration=100s",
    "--leader-elect-renew-deadline=90s",
    "--leader-elect-retry-period=500ms",
];

/// The collector observes the deletion of the owner before the restore recreates the owner with the
/// same UID.
#[tokio::test]
async fn objects_from_a_restored_etcd_are_not_collected() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-restored").await?;
    let mut expected_objects = ExpectedObjects::default();
    let (owner, children) = create_family(&dynamic_client, &mut expected_objects).await?;
    back_up(&plane).await?;

    let collector = Collector::start(&plane, &[]).await?;
    dynamic_client.delete(&owner, Policy::Background).await?;
    for child in &children {
        dynamic_client.wait_until_gone(child).await?;
    }
    restore(&plane).await?;

    // The deletion is not recorded in `expected_objects`, so all objects of the restored etcd must
    // remain.
    collector.verify(&expected_objects, &dynamic_client).await
}

/// Half of the children exist when etcd is restored. Their versions are those of the backup, so the
/// preconditions of their deletions hold.
#[tokio::test]
async fn children_that_are_left_when_their_owner_is_restored_are_not_collected() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-half-restored").await?;
    let mut expected_objects = ExpectedObjects::default();
    let (owner, children) = create_family(&dynamic_client, &mut expected_objects).await?;
    let unrelated = expected_objects
        .create_one(&dynamic_client, config_map("unrelated"))
        .await?;
    back_up(&plane).await?;

    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "restored")?;
    let deletions = || Matcher::any().method("DELETE").resource("secrets");
    // The oldest rule acts, so the first ten deletions pass.
    proxy.delay_responses(deletions(), Duration::ZERO, Repeat::Next(10));
    let held = proxy.fault(deletions(), Fault::BlackHole, Repeat::UntilHealed);
    let collector = Collector::start_as(&plane, &kubeconfig, "collector", &["--concurrent-gc-syncs=1"]).await?;
    increase_versions(&dynamic_client, &unrelated).await?;
    dynamic_client.delete(&owner, Policy::Background).await?;
    held.wait_for_applied(1, LIMIT).await?;
    restore(&plane).await?;
    proxy.heal_one(&held);

    // The collector works again. It has not deleted any child.
    dynamic_client.catch_up().await?;
    collector.verify(&expected_objects, &dynamic_client).await?;
    let metrics = collector.daemon.admin.metrics().await?;
    let decreases = metrics.sum("gc_version_decreases_total", &[]);
    let log = || collector.daemon.process.log_tail();
    ensure!(decreases >= 1.0, "no resourceVersion was seen to decrease{}", log());
    // The graph has all restored children, although the watches were silent.
    proxy.heal();
    dynamic_client.delete(&owner, Policy::Background).await?;
    for child in &children {
        dynamic_client.wait_until_gone(child).await?;
    }
    Ok(())
}

/// The watches stay silent after the restore, and the collector has nothing to do. Its Lease shows
/// that versions have decreased.
#[tokio::test]
async fn the_lease_shows_a_restore_that_no_watch_reports() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-lease-restored").await?;
    let mut expected_objects = ExpectedObjects::default();
    let (owner, children) = create_family(&dynamic_client, &mut expected_objects).await?;
    let unrelated = expected_objects
        .create_one(&dynamic_client, config_map("unrelated"))
        .await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "restored")?;
    let collector = Collector::start_as(&plane, &kubeconfig, "collector", &HELD_LEASE).await?;
    collector.wait_until_synced().await?;
    back_up(&plane).await?;

    increase_versions(&dynamic_client, &unrelated).await?;
    dynamic_client.delete(&owner, Policy::Background).await?;
    for child in &children {
        dynamic_client.wait_until_gone(child).await?;
        collector.wait_until_not_in_graph(child).await?;
    }
    proxy.fault(Matcher::watches(), Fault::BlackHole, Repeat::UntilHealed);
    restore(&plane).await?;
    let log = || collector.daemon.process.log_tail();
    eventually(LIMIT, "the graph to have the restored children", || async {
        for child in &children {
            ensure!(collector.has_node(child).await?, "{child:?}{}", log());
        }
        anyhow::Ok(())
    })
    .await?;

    proxy.heal();
    dynamic_client.catch_up().await?;
    collector.verify(&expected_objects, &dynamic_client).await
}

/// A restore undoes the deletion of an owner with `Orphan`, while its dependents are released.
#[tokio::test]
async fn dependents_of_a_restored_owner_keep_their_references() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-orphans-restored").await?;
    let mut expected_objects = ExpectedObjects::default();
    let (owner, _) = create_family(&dynamic_client, &mut expected_objects).await?;
    back_up(&plane).await?;

    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "restored")?;
    let matcher = Matcher::any().method("PATCH").resource("secrets");
    let patches = proxy.delay_responses(matcher, Duration::from_millis(200), Repeat::UntilHealed);
    let collector = Collector::start_as(&plane, &kubeconfig, "collector", &["--concurrent-gc-syncs=1"]).await?;
    collector.wait_until_synced().await?;
    dynamic_client.delete(&owner, Policy::Orphan).await?;
    patches.wait_for_matched(5, LIMIT).await?;
    restore(&plane).await?;
    ensure!(patches.matched() < 15, "every child was released before the restore");

    collector.verify(&expected_objects, &dynamic_client).await
}

/// Sends more writes than an apiserver that starts, so that versions are seen to decrease after a
/// restore.
pub(crate) async fn increase_versions(dynamic_client: &DynamicClient, object: &DynamicObject) -> Result<()> {
    for number in 0..500 {
        let labels = json!({"metadata": {"labels": {"number": number.to_string()}}});
        dynamic_client.patch(object, labels).await?;
    }
    Ok(())
}

/// Creates an owner and its 20 children.
async fn create_family(
    dynamic_client: &DynamicClient,
    expected_objects: &mut ExpectedObjects,
) -> Result<(DynamicObject, Vec<DynamicObject>)> {
    let owner = expected_objects.create_one(dynamic_client, config_map("owner")).await?;
    let children = (0..20).map(|number| secret(&format!("child-{number}")).owned_by(&owner));
    let children = expected_objects.create(dynamic_client, children).await?;
    Ok((owner, children))
}

/// Copies the data of etcd.
pub(crate) async fn back_up(plane: &ControlPlane) -> Result<()> {
    plane.etcd().stop().await?;
    copy(&plane.folder().join("etcd"), &plane.folder().join("saved"))?;
    plane.etcd().start().await
}

/// Restores the copied data, while no server runs.
pub(crate) async fn restore(plane: &ControlPlane) -> Result<()> {
    let (data, saved) = (plane.folder().join("etcd"), plane.folder().join("saved"));
    plane.apiserver().stop().await?;
    plane.etcd().stop().await?;
    fs::remove_dir_all(&data)?;
    fs::rename(&saved, &data)?;
    plane.etcd().start().await?;
    plane.apiserver().start().await
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
