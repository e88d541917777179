//! References to invalid owners: in other namespaces, of unknown kinds or versions, or of resources
//! whose watch is slow.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use kube::{ResourceExt, api::DynamicObject};
use portreeve_testing::{Builder, ControlPlane, FaultProxy, Matcher, Repeat, eventually};
use serde_json::{Value, json};

use super::{collector::Collector, shared};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy, ensure_throughout},
    expected_objects::ExpectedObjects,
    object_builder::{ObjectBuilder, config_map, persistent_volume, reference, secret},
};

/// The number of objects of each kind that have only invalid owners.
const INVALID_CHILDREN: usize = 5;

/// The time during which valid children must remain.
const KEPT_TIME: Duration = Duration::from_secs(1);

#[tokio::test]
async fn test_cross_namespace_references_with_watch_cache() -> Result<()> {
    cross_namespace_references(ControlPlane::builder()).await
}

#[tokio::test]
async fn test_cross_namespace_references_without_watch_cache() -> Result<()> {
    cross_namespace_references(ControlPlane::builder().apiserver_arg("--watch-cache=false")).await
}

async fn cross_namespace_references(options: Builder) -> Result<()> {
    let plane = options.pooled().await?;
    let (mut expected_objects, there) = (ExpectedObjects::default(), DynamicClient::new(&plane, "b").await?);
    let parent = expected_objects.create_one(&there, config_map("parent")).await?;
    let children = (0..10).map(|number| secret(&format!("child-{number}")).owned_by(&parent));
    let children = expected_objects.create(&there, children).await?;

    let here = DynamicClient::new(&plane, "a").await?;
    // A reference with the parent's UID, but with another kind and name, from another namespace.
    let mut misnamed = reference(&parent);
    misnamed["kind"] = "Pod".into();
    misnamed["name"] = "invalid".into();
    let unknown = |number| {
        json!({
            "apiVersion": "test/v1", "kind": format!("invalid{number}"), "name": "invalid", "uid": format!("invalid-{number}"),
        })
    };
    let many: Vec<_> = (0..25).map(unknown).chain([misnamed.clone()]).collect();
    let mut doomed = Vec::new();
    for number in 0..INVALID_CHILDREN {
        here.create(owned_by_all(config_map(&format!("invalid-child-{number}")), &many))
            .await?;
        here.create(owned_by_all(secret(&format!("invalid-child-a-{number}")), &many))
            .await?;
        let child = secret(&format!("invalid-child-b-{number}")).owner(misnamed.clone());
        doomed.push(here.create(child).await?);
    }

    // The collector starts after the objects, as after a restart.
    let collector = Collector::start(&plane, &[]).await?;
    try_join_all(doomed.iter().map(|child| here.wait_until_gone(child))).await?;
    let ensure_children = || ensure_exist(&there, &children);
    ensure_throughout(KEPT_TIME, ensure_children).await?;
    ensure!(collector.has_node(&parent).await?, "the parent is not in the graph");

    let late = here.create(secret("invalid-child-c").owner(misnamed)).await?;
    here.wait_until_gone(&late).await?;
    ensure_children().await?;
    expected_objects.verify(&there).await
}

fn owned_by_all(builder: ObjectBuilder, owners: &[Value]) -> ObjectBuilder {
    owners.iter().cloned().fold(builder, ObjectBuilder::owner)
}

async fn ensure_exist(dynamic_client: &DynamicClient, children: &[DynamicObject]) -> Result<()> {
    let found = dynamic_client.list("v1", "Secret").await?;
    for child in children {
        let is_there = found.iter().any(|found| found.metadata.uid == child.metadata.uid);
        ensure!(is_there, "{} is gone", child.name_any());
    }
    Ok(())
}

#[tokio::test]
async fn test_cluster_scoped_owners() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let volumes = Matcher::watches().resource("persistentvolumes");
    proxy.delay_responses(volumes, Duration::from_secs(30), Repeat::UntilHealed);
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "slow")?;
    let _collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;

    let dynamic_client = DynamicClient::new(&plane, "gc-cluster-scope-deletion").await?;
    let volume = dynamic_client.create_for_cluster(persistent_volume("pv-valid")).await?;
    let valid = dynamic_client.create(config_map("cm-valid").owned_by(&volume)).await?;
    let owner = |api_version: &str, kind: &str, of: &str| json!({"apiVersion": api_version, "kind": kind, "name": format!("{of}-name"), "uid": format!("{of}-uid")});
    let missing = config_map("cm-missing").label("missing", "true");
    let missing = dynamic_client
        .create(missing.owner(owner("v1", "PersistentVolume", "missing")))
        .await?;
    let invalid = owner("unknown.group/v1", "UnknownType", "invalid");
    let invalid = dynamic_client.create(config_map("cm-invalid").owner(invalid)).await?;

    dynamic_client.wait_until_gone(&missing).await?;
    dynamic_client.catch_up().await?;
    ensure_throughout(KEPT_TIME, || async {
        dynamic_client.get(&invalid).await?;
        dynamic_client.get(&valid).await?;
        Ok(())
    })
    .await
}

/// Waits until owners of this kind are counted as unknown.
async fn wait_until_counted(collector: &Collector, kind: &str) -> Result<()> {
    let label = format!("gvr=\"{kind}\"");
    eventually(LIMIT, &format!("an unknown owner with {label}"), || async {
        let metrics = collector.daemon.admin.metrics().await?;
        ensure!(metrics.sum("gc_unknown_owners", &[&label]) > 0.5, "it is not counted");
        anyhow::Ok(())
    })
    .await
}

/// A ConfigMap of that name is absent, which proves nothing about an object of another kind.
#[tokio::test]
async fn an_owner_whose_kind_only_resembles_a_served_one_is_unknown() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-kinds").await?;
    let mut children = Vec::new();
    for (kind, name) in [("ConfigMapList", "of-list"), ("configmap", "of-lower-case")] {
        let uid = format!("{kind}-{}", dynamic_client.name());
        let owner = json!({"apiVersion": "v1", "kind": kind, "name": "nobody", "uid": uid});
        children.push(dynamic_client.create(secret(name).owner(owner)).await?);
        wait_until_counted(collector, &format!("{kind}.v1")).await?;
    }
    dynamic_client.catch_up().await?;
    ensure_throughout(KEPT_TIME, || ensure_exist(&dynamic_client, &children)).await
}

/// Returns an object whose references may name versions of its kind that are not served.
fn budget(name: &str) -> ObjectBuilder {
    ObjectBuilder::new("policy/v1", "PodDisruptionBudget", name).with("spec", json!({}))
}

/// Kubernetes 1.25 has removed `policy/v1beta1`.
#[tokio::test]
async fn a_reference_in_a_version_that_is_no_longer_served_denotes_the_same_owner() -> Result<()> {
    for policy in [Policy::Background, Policy::Foreground] {
        let (dynamic_client, collector) = shared::client_and_collector("gc-versions").await?;
        let owner = dynamic_client.create(budget("owner")).await?;
        let mut former = reference(&owner);
        former["apiVersion"] = "policy/v1beta1".into();
        former["blockOwnerDeletion"] = true.into();
        let child = dynamic_client.create(secret("child").owner(former.clone())).await?;
        former["uid"] = format!("absent-{}", dynamic_client.name()).into();
        let garbage = dynamic_client.create(secret("garbage").owner(former)).await?;
        collector.wait_until_observes(&[&owner, &child]).await?;
        dynamic_client.wait_until_gone(&garbage).await?;
        dynamic_client.get(&child).await?;

        dynamic_client.delete(&owner, policy).await?;
        dynamic_client.wait_until_gone(&child).await?;
        dynamic_client.wait_until_gone(&owner).await?;
    }
    Ok(())
}

/// The UID is that of another object, which does not prove that the owner of the unserved kind is
/// absent.
#[tokio::test]
async fn an_unserved_owner_with_the_uid_of_a_deleted_object_is_unknown_and_counted() -> Result<()> {
    let (dynamic_client, collector) = shared::client_and_collector("gc-unserved").await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let mut unserved = reference(&owner);
    unserved["apiVersion"] = "unserved.example.com/v1".into();
    unserved["kind"] = "Counted".into();
    let child = dynamic_client.create(secret("child").owner(unserved)).await?;
    collector.wait_until_observes(&[&child]).await?;
    dynamic_client.delete(&owner, Policy::Background).await?;
    wait_until_counted(collector, "Counted.unserved.example.com/v1").await?;
    dynamic_client.catch_up().await?;
    let uid = child.metadata.uid.as_deref().unwrap_or_default();
    let (_, text) = collector.page(&format!("explain?uid={uid}")).await?;
    ensure!(text.contains("its kind is not served"), "{text}");
    ensure_throughout(KEPT_TIME, || {
        ensure_exist(&dynamic_client, std::slice::from_ref(&child))
    })
    .await
}
