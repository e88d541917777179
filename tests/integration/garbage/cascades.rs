//! Tests of owners that are deleted in the background, with and without orphaning.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::{ResourceExt, api::DynamicObject};
use portreeve_testing::eventually;
use serde_json::json;

use super::{collector::Collector, shared};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy},
    expected_objects::ExpectedObjects,
    object_builder::{pod, replication_controller},
};

#[tokio::test]
async fn test_cascading_deletion() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-cascading-deletion").await?;
    let mut expected_objects = ExpectedObjects::default();
    let doomed = expected_objects
        .create_one(&dynamic_client, replication_controller("test.rc.1"))
        .await?;
    let remaining = expected_objects
        .create_one(&dynamic_client, replication_controller("test.rc.2"))
        .await?;
    let controllers = dynamic_client.list("v1", "ReplicationController").await?;
    ensure!(controllers.len() == 2, "{controllers:?}");

    let collected = expected_objects
        .create_one(&dynamic_client, pod("test.pod.1").owned_by(&doomed))
        .await?;
    let shared = pod("test.pod.3").owned_by(&doomed).owned_by(&remaining);
    let shared = expected_objects.create_one(&dynamic_client, shared).await?;
    let independent = expected_objects.create_one(&dynamic_client, pod("test.pod.2")).await?;
    let pods = dynamic_client.list("v1", "Pod").await?;
    ensure!(pods.len() == 3, "{pods:?}");

    expected_objects
        .delete(&dynamic_client, &doomed, Policy::OrphanDependents(false))
        .await?;
    collector.wait_until_not_in_graph(&doomed).await?;
    dynamic_client.wait_until_gone(&collected).await?;
    dynamic_client.get(&independent).await?;
    dynamic_client.get(&shared).await?;
    expected_objects.verify(&dynamic_client).await
}

#[tokio::test]
async fn test_create_with_non_existent_owner() -> Result<()> {
    let (dynamic_client, _) = shared::client_and_collector("gc-non-existing-owner").await?;
    let absent_owner = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "name": "test.rc.1", "uid": "doesn't matter",
    });
    let pod = dynamic_client.create(pod("test.pod.1").owner(absent_owner)).await?;
    let pods = dynamic_client.list("v1", "Pod").await?;
    ensure!(pods.len() <= 1, "{pods:?}");
    dynamic_client.wait_until_gone(&pod).await
}

#[tokio::test]
async fn test_stressing_cascading_deletion() -> Result<()> {
    const COLLECTIONS: usize = 10;
    let (dynamic_client, collector) = shared::client_and_collector("gc-stressing-cascading-deletion").await?;
    let of_collection = |number: usize| {
        [
            ("collection1", None, Policy::Unspecified),
            ("collection2", Some("orphan"), Policy::Unspecified),
            ("collection3", Some("orphan"), Policy::OrphanDependents(false)),
            ("collection4", None, Policy::OrphanDependents(true)),
            ("collection5", None, Policy::Orphan),
        ]
        .map(|(name, finalizer, policy)| (format!("{name}-{number}"), finalizer, policy))
    };
    let collections = (0..COLLECTIONS).flat_map(of_collection);
    let collections =
        collections.map(|(name, finalizer, policy)| collection(&dynamic_client, collector, name, finalizer, policy));
    let controllers = try_join_all(collections).await?;

    // Each round has five collections of three pods. The pods of one collection are deleted, the
    // others are orphaned.
    let left = 3 * 4 * COLLECTIONS;
    let pods = eventually(LIMIT, "the orphaned pods, and no controllers, to be left", || async {
        let pods = dynamic_client.list("v1", "Pod").await?;
        let controllers = dynamic_client.list("v1", "ReplicationController").await?;
        let (pods_left, controllers_left) = (pods.len(), controllers.len());
        ensure!(
            (pods_left, controllers_left) == (left, 0),
            "found {pods_left} pods and {controllers_left} controllers"
        );
        anyhow::Ok(pods)
    })
    .await?;
    for pod in &pods {
        ensure!(!pod.name_any().contains("collection3-"), "{pod:?}");
    }
    for controller in &controllers {
        collector.wait_until_not_in_graph(controller).await?;
    }
    Ok(())
}

/// Creates a `ReplicationController` with three pods, and deletes it.
async fn collection(
    dynamic_client: &DynamicClient,
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
    let controller = dynamic_client.create(controller).await?;
    let mut pods = Vec::new();
    for number in 0..3 {
        let pod = pod(&format!("test.pod.{name}-{number}")).owned_by(&controller);
        pods.push(dynamic_client.create(pod).await?);
    }
    if policy != Policy::OrphanDependents(false) {
        // Otherwise the collector may observe a pod only after it has orphaned the others, and
        // collect it.
        collector.wait_until_observes(&pods.iter().collect::<Vec<_>>()).await?;
    }
    dynamic_client.delete(&controller, policy).await?;
    Ok(controller)
}

#[tokio::test]
async fn test_orphaning() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-orphaning").await?;
    let mut expected_objects = ExpectedObjects::default();
    let owner = expected_objects
        .create_one(&dynamic_client, replication_controller("test.rc.1"))
        .await?;
    let pods = (0..3).map(|number| pod(&format!("test.pod.1{number}")).owned_by(&owner));
    let pods = expected_objects.create(&dynamic_client, pods).await?;
    collector.wait_until_observes(&pods.iter().collect::<Vec<_>>()).await?;

    expected_objects
        .delete(&dynamic_client, &owner, Policy::OrphanDependents(true))
        .await?;
    dynamic_client.wait_until_gone(&owner).await?;
    let left = dynamic_client.list("v1", "Pod").await?;
    ensure!(left.len() == pods.len(), "{left:?}");
    for pod in &left {
        ensure!(pod.owner_references().is_empty(), "{pod:?}");
    }
    expected_objects.verify(&dynamic_client).await
}
