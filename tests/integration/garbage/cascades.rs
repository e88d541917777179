//! Owners that are deleted in the background, orphaning or not.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::{ResourceExt, api::DynamicObject};
use portreeve_testing::eventually;
use serde_json::json;

use super::{
    collector::Collector,
    draft::{pod, replication_controller},
    judge::Ledger,
    shared,
    yard::{Policy, Yard},
};
use crate::support::LIMIT;

#[tokio::test]
async fn test_cascading_deletion() -> Result<()> {
    let (yard, collector) = shared::yard("gc-cascading-deletion").await?;
    let mut ledger = Ledger::default();
    let doomed = ledger.create_one(&yard, replication_controller("test.rc.1")).await?;
    let remaining = ledger.create_one(&yard, replication_controller("test.rc.2")).await?;
    let controllers = yard.list("v1", "ReplicationController").await?;
    ensure!(controllers.len() == 2, "{controllers:?}");

    let collected = ledger.create_one(&yard, pod("test.pod.1").owned_by(&doomed)).await?;
    let shared = pod("test.pod.3").owned_by(&doomed).owned_by(&remaining);
    let shared = ledger.create_one(&yard, shared).await?;
    let independent = ledger.create_one(&yard, pod("test.pod.2")).await?;
    let pods = yard.list("v1", "Pod").await?;
    ensure!(pods.len() == 3, "{pods:?}");

    ledger.delete(&yard, &doomed, Policy::OrphanDependents(false)).await?;
    collector.wait_until_forgets(&doomed).await?;
    yard.wait_until_gone(&collected).await?;
    yard.get(&independent).await?;
    yard.get(&shared).await?;
    ledger.judge(&yard).await
}

#[tokio::test]
async fn test_create_with_non_existent_owner() -> Result<()> {
    let (yard, _) = shared::yard("gc-non-existing-owner").await?;
    let nobody = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "name": "test.rc.1", "uid": "doesn't matter",
    });
    let pod = yard.create(pod("test.pod.1").owner(nobody)).await?;
    let pods = yard.list("v1", "Pod").await?;
    ensure!(pods.len() <= 1, "{pods:?}");
    yard.wait_until_gone(&pod).await
}

#[tokio::test]
async fn test_stressing_cascading_deletion() -> Result<()> {
    const COLLECTIONS: usize = 10;
    let (yard, collector) = shared::yard("gc-stressing-cascading-deletion").await?;
    let of_collection = |number: usize| {
        [
            ("collection1", None, Policy::Unsaid),
            ("collection2", Some("orphan"), Policy::Unsaid),
            ("collection3", Some("orphan"), Policy::OrphanDependents(false)),
            ("collection4", None, Policy::OrphanDependents(true)),
            ("collection5", None, Policy::Orphan),
        ]
        .map(|(name, finalizer, policy)| (format!("{name}-{number}"), finalizer, policy))
    };
    let collections = (0..COLLECTIONS).flat_map(of_collection);
    let ends = collections.map(|(name, finalizer, policy)| collection(&yard, collector, name, finalizer, policy));
    let controllers = try_join_all(ends).await?;

    // Of three pods in each of five collections, one collection is not orphaned.
    let left = 3 * 4 * COLLECTIONS;
    let pods = eventually(LIMIT, "as many as are expected to be left", || async {
        let pods = yard.list("v1", "Pod").await?;
        let controllers = yard.list("v1", "ReplicationController").await?;
        let (pods_left, controllers_left) = (pods.len(), controllers.len());
        ensure!(
            (pods_left, controllers_left) == (left, 0),
            "{pods_left} and {controllers_left}"
        );
        anyhow::Ok(pods)
    })
    .await?;
    for pod in &pods {
        ensure!(!pod.name_any().contains("collection3-"), "{pod:?}");
    }
    for controller in &controllers {
        collector.wait_until_forgets(controller).await?;
    }
    Ok(())
}

/// Creates a controller and three pods of its, and deletes it.
async fn collection(
    yard: &Yard,
    collector: &Collector,
    name: String,
    finalizer: Option<&str>,
    policy: Policy,
) -> Result<DynamicObject> {
    let controller = replication_controller(&format!("test.rc.{name}"));
    let controller = match finalizer {
        Some(finalizer) => controller.finalizer(finalizer),
        None => controller,
    };
    let controller = yard.create(controller).await?;
    let mut pods = Vec::new();
    for number in 0..3 {
        let pod = pod(&format!("test.pod.{name}-{number}")).owned_by(&controller);
        pods.push(yard.create(pod).await?);
    }
    if policy != Policy::OrphanDependents(false) {
        // A pod that the collector has not heard of when it orphans would not be orphaned, but collected.
        collector.wait_until_observes(&pods.iter().collect::<Vec<_>>()).await?;
    }
    yard.delete(&controller, policy).await?;
    Ok(controller)
}

#[tokio::test]
async fn test_orphaning() -> Result<()> {
    let (yard, collector) = shared::yard("gc-orphaning").await?;
    let mut ledger = Ledger::default();
    let owner = ledger.create_one(&yard, replication_controller("test.rc.1")).await?;
    let pods = (0..3).map(|number| pod(&format!("test.pod.1{number}")).owned_by(&owner));
    let pods = ledger.create(&yard, pods).await?;
    collector.wait_until_observes(&pods.iter().collect::<Vec<_>>()).await?;

    ledger.delete(&yard, &owner, Policy::OrphanDependents(true)).await?;
    yard.wait_until_gone(&owner).await?;
    let left = yard.list("v1", "Pod").await?;
    ensure!(left.len() == pods.len(), "{left:?}");
    for pod in &left {
        ensure!(pod.owner_references().is_empty(), "{pod:?}");
    }
    ledger.judge(&yard).await
}
