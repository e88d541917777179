//! Tests with a resource that cannot be listed, because its conversion webhook is missing.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::json;

use super::{
    collector::Collector,
    unlistable::{break_conversion, wait_until_released},
};
use crate::fixtures::test_crd::TestCrd;
use crate::fixtures::{
    LIMIT,
    daemon::{ALL_CONTROLLERS, Daemon, EXPIRING_LEASE},
    dynamic_client::{DynamicClient, Policy},
    namespace::NamespaceFixture,
    object_builder::{ObjectBuilder, config_map, pod, replication_controller, secret},
};

#[tokio::test]
async fn test_cascading_delete_on_crd_conversion_failure() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-cache-sync-fail").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    dynamic_client.create(crd.instance("test")).await?;
    break_conversion(&plane, &[&crd]).await?;
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_not_synced().await?;

    let owner = dynamic_client.create(replication_controller("test.rc.1")).await?;
    let controllers = dynamic_client.list("v1", "ReplicationController").await?;
    ensure!(controllers.len() == 1, "{controllers:?}");
    let pod = dynamic_client.create(pod("test.pod.1").owned_by(&owner)).await?;
    let pods = dynamic_client.list("v1", "Pod").await?;
    ensure!(pods.len() == 1, "{pods:?}");

    dynamic_client.delete(&owner, Policy::OrphanDependents(false)).await?;
    collector.wait_until_not_in_graph(&owner).await?;
    dynamic_client.wait_until_gone(&pod).await?;
    // The resource still cannot be listed.
    ensure!(!collector.is_synced().await?, "everything is synced");
    Ok(())
}

/// Returns a builder of a Deployment or a ReplicaSet.
fn workload(kind: &str, name: &str) -> ObjectBuilder {
    let labels = json!({"name": name});
    let containers = json!([{"name": "main", "image": "example.com/a:1"}]);
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
    let spec = json!({"replicas": 0, "selector": {"matchLabels": labels}, "template": template});
    ObjectBuilder::new("apps/v1", kind, name).with("spec", spec)
}

/// Waits until the daemon reports that it cannot read a resource, without failing because of it.
async fn wait_until_reported(daemon: &Daemon, resource: &str) -> Result<()> {
    let is_reported = |status, text: &str| {
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("[+]gc/resources"));
        status == StatusCode::OK && line.is_some_and(|line| line.contains(resource))
    };
    daemon
        .admin
        .wait_until_readyz(&format!("{resource} in the note of gc/resources"), is_reported)
        .await?;
    eventually(LIMIT, "the metric of the resource", || async {
        let metrics = daemon.admin.metrics().await?;
        let label = format!("gvr=\"{resource}\"");
        let is_of_resource = |line: &&str| line.starts_with("gc_monitor_synced{") && line.contains(&label);
        let line = metrics.0.lines().find(is_of_resource).context("it has no line")?;
        ensure!(line.ends_with(" 0"), "{line}");
        anyhow::Ok(())
    })
    .await
}

/// Somebody's definition has objects in two versions and a broken conversion. All controllers work,
/// whether the daemon was started before or after it broke.
#[tokio::test]
async fn everything_else_works_while_somebodys_conversion_is_broken() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "somebody").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    // An orphan deletion must record its owner in the annotation of the Lease.
    let flags = [&["--install-crds", &**ALL_CONTROLLERS][..], &EXPIRING_LEASE].concat();
    let daemon = Daemon::start(&plane, "before", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let owner = dynamic_client.create(config_map("owner-of-both")).await?;
    let custom = dynamic_client.create(crd.instance("old").owned_by(&owner)).await?;
    break_conversion(&plane, &[&crd]).await?;
    let new = crd.instance_in("v1", "new").owned_by(&owner);
    let new = eventually(LIMIT, "the new version to be served", || {
        dynamic_client.create(new.clone())
    })
    .await?;
    wait_until_reported(&daemon, &crd.resource("v1")).await?;
    cascade(&dynamic_client)
        .await
        .context("the daemon was started before")?;
    let fixture = NamespaceFixture::new(&plane, "foos-before").await?;
    fixture.ready_foo("web", 2).await?;
    drop(daemon);

    let daemon = Daemon::start(&plane, "after", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    wait_until_reported(&daemon, &crd.resource("v1")).await?;
    cascade(&dynamic_client).await.context("the daemon was started after")?;
    let fixture = NamespaceFixture::new(&plane, "foos-after").await?;
    fixture.ready_foo("web", 2).await?;

    dynamic_client.delete(&owner, Policy::Background).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    crd.repair_conversion().await?;
    for custom in [custom, new] {
        let same = crd.instance_in("v1", &kube::ResourceExt::name_any(&custom));
        let mut same = same.into_object()?;
        same.metadata = custom.metadata;
        dynamic_client
            .wait_until_gone(&same)
            .await
            .context("a dependent in the repaired resource")?;
    }
    Ok(())
}

/// Deletes owners of several kinds in several ways, and waits for the end of each.
async fn cascade(dynamic_client: &DynamicClient) -> Result<()> {
    let deployment = dynamic_client.create(workload("Deployment", "web")).await?;
    let replica_set = dynamic_client
        .create(workload("ReplicaSet", "web-1").owned_by(&deployment))
        .await?;
    let pod = dynamic_client.create(pod("web-1-a").owned_by(&replica_set)).await?;
    dynamic_client.delete(&deployment, Policy::Background).await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let dependent = dynamic_client
        .create(secret("dependent").blocking(&owner, true))
        .await?;
    dynamic_client.delete(&owner, Policy::Foreground).await?;
    let orphaning = dynamic_client.create(workload("Deployment", "orphaning")).await?;
    let orphan = dynamic_client
        .create(workload("ReplicaSet", "orphan").owned_by(&orphaning))
        .await?;
    dynamic_client.delete(&orphaning, Policy::Orphan).await?;
    for gone in [&deployment, &replica_set, &pod, &owner, &dependent, &orphaning] {
        dynamic_client.wait_until_gone(gone).await?;
    }
    wait_until_released(dynamic_client, &orphan).await?;
    dynamic_client.delete(&orphan, Policy::Background).await?;
    dynamic_client.wait_until_gone(&orphan).await
}
