//! Tests of owners whose deletion waits for the lists of a resource that cannot be listed.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{api::coordination::v1::Lease, kube_aggregator::pkg::apis::apiregistration::v1::APIService};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use portreeve_testing::{ControlPlane, Signal, eventually};
use serde_json::{Value, from_value, json};
use tokio::time::Instant;

use super::{
    collector::Collector,
    processes::{LEASE, leader_of},
};
use crate::fixtures::{
    LIMIT,
    daemon::EXPIRING_LEASE,
    dynamic_client::{DynamicClient, Policy},
    object_builder::config_map,
    test_crd::TestCrd,
};

/// How long a deletion waits for a resource that cannot be listed.
const WAIT: Duration = Duration::from_secs(30);
/// The reason of an event about an owner that cannot be recorded.
const BLOCKED: &str = "OrphaningBlocked";
const ANNOTATION: &str = "garbage-collector.portreeve.dev/orphaned-owners";
/// The version of a CRD with a broken conversion in which objects can be created.
const CREATABLE: &str = "v1";

/// Breaks the conversion of these CRDs, so that they cannot be listed.
pub(super) async fn break_conversion(plane: &ControlPlane, crds: &[&TestCrd]) -> Result<()> {
    let certificate = fs::read(plane.folder().join("apiserver.crt"))?;
    for crd in crds {
        crd.break_conversion(&certificate).await?;
    }
    Ok(())
}

/// Returns the owners and resources in the annotation of the Lease.
pub(super) async fn annotation(plane: &ControlPlane) -> Result<Option<Value>> {
    let leases: Api<Lease> = Api::namespaced(plane.client()?, "kube-system");
    let annotations = leases.get(LEASE).await?.metadata.annotations.unwrap_or_default();
    let text = annotations.get(ANNOTATION);
    text.map(|text| serde_json::from_str(text).context("invalid annotation"))
        .transpose()
}

pub(super) async fn wait_until_released(dynamic_client: &DynamicClient, dependent: &DynamicObject) -> Result<()> {
    eventually(LIMIT, "a dependent to be released", || async {
        let dependent = dynamic_client.get(dependent).await?;
        ensure!(dependent.owner_references().is_empty(), "{:?}", dependent.metadata);
        ensure!(dependent.metadata.deletion_timestamp.is_none(), "it is being deleted");
        anyhow::Ok(())
    })
    .await
}

/// The leader knows one dependent, and no replica knows the others. The leader is killed after the
/// owner is gone, so another replica finds the dependents. The CRD of one of them is deleted
/// without its objects, and created again.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "the steps depend on each other")]
async fn an_orphan_deletion_ends_without_resources_that_cannot_be_listed() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-unlistable").await?;
    let repaired = TestCrd::namespaced(&dynamic_client).await?;
    let deleted = TestCrd::namespaced(&DynamicClient::new(&plane, "gc-unlistable").await?).await?;
    let mut replicas = Vec::new();
    for name in ["replica-a", "replica-b"] {
        let pod = [("POD_NAME", name)];
        let replica = Collector::start_with(&plane, plane.kubeconfig(), name, &EXPIRING_LEASE, &pod).await?;
        replica.wait_until_synced().await?;
        replicas.push((name, replica));
    }
    let owner = dynamic_client.create(config_map("owner")).await?;
    let known = dynamic_client
        .create(repaired.instance("known").owned_by(&owner))
        .await?;
    // An object in the former version makes the lists of the CRD fail.
    dynamic_client.create(deleted.instance("other")).await?;
    for (_, replica) in &replicas {
        replica.wait_until_observes(&[&known]).await?;
    }
    break_conversion(&plane, &[&repaired, &deleted]).await?;
    for (_, replica) in &replicas {
        replica.wait_until_not_synced().await?;
    }
    let unknown = repaired.instance_in(CREATABLE, "unknown").owned_by(&owner);
    let unknown = eventually(LIMIT, "the new version to be served", || {
        dynamic_client.create(unknown.clone())
    })
    .await?;
    let returned = deleted.instance_in(CREATABLE, "returned").owned_by(&owner);
    let returned = eventually(LIMIT, "the new version to be served", || {
        dynamic_client.create(returned.clone())
    })
    .await?;

    let began = Instant::now();
    dynamic_client.delete(&owner, Policy::Orphan).await?;
    dynamic_client.wait_until_gone(&owner).await?;
    let took = began.elapsed();
    ensure!(took >= WAIT, "the owner was gone after {took:?}");
    let mut resources = [repaired.name(), deleted.name()];
    resources.sort();
    let expected = json!([{"owners": [owner.metadata.uid], "resources": resources}]);
    let found = annotation(&plane).await?;
    ensure!(found.as_ref() == Some(&expected), "{found:?}");

    let leader = leader_of(&plane, None).await?;
    for (_, killed) in replicas.extract_if(.., |(name, _)| *name == leader) {
        killed.daemon.process.signal(Signal::KILL)?;
        killed.daemon.process.wait(LIMIT).await?;
    }
    leader_of(&plane, Some(&leader)).await?;
    deleted.delete_without_objects().await?;
    repaired.repair_conversion().await?;
    for dependent in [&known, &unknown] {
        wait_until_released(&dynamic_client, dependent).await?;
    }
    // That the other CRD was deleted proves nothing about its objects.
    let expected = json!([{"owners": [owner.metadata.uid], "resources": [deleted.name()]}]);
    eventually(LIMIT, "the repaired resource to be settled", || async {
        let found = annotation(&plane).await?;
        ensure!(found.as_ref() == Some(&expected), "{found:?}");
        anyhow::Ok(())
    })
    .await?;
    deleted.create_again_with_both_versions().await?;
    wait_until_released(&dynamic_client, &returned).await?;
    eventually(LIMIT, "the owner to be forgotten", || async {
        let found = annotation(&plane).await?;
        ensure!(found.is_none(), "{found:?}");
        anyhow::Ok(())
    })
    .await
}

/// Seeds the annotation with as many owners as it can hold. Their resource is of an aggregated API
/// that is away, so it is neither listable nor known to be gone.
async fn fill_annotation(plane: &ControlPlane) -> Result<Value> {
    let service = json!({
        "metadata": {"name": "v1.away.example.com"},
        "spec": {
            "group": "away.example.com", "version": "v1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 1000, "versionPriority": 15,
            "service": {"name": "away", "namespace": "default"},
        },
    });
    let services: Api<APIService> = Api::all(plane.client()?);
    services.create(&PostParams::default(), &from_value(service)?).await?;
    let owners: Vec<_> = (0..256).map(|number| format!("owner-{number:03}")).collect();
    let full = json!([{"owners": owners, "resources": ["things.away.example.com"]}]);
    create_lease(plane, &full).await?;
    Ok(full)
}

/// Creates the Lease with this annotation.
async fn create_lease(plane: &ControlPlane, record: &Value) -> Result<()> {
    let lease = json!({"metadata": {"name": LEASE, "annotations": {ANNOTATION: record.to_string()}}});
    let leases: Api<Lease> = Api::namespaced(plane.client()?, "kube-system");
    let lease = from_value(lease)?;
    // A starting apiserver creates the namespace late.
    let params = PostParams::default();
    eventually(LIMIT, "the Lease to be created", || leases.create(&params, &lease)).await?;
    Ok(())
}

/// A newer version of the collector, or a person, has written an annotation that this one cannot
/// read.
#[tokio::test]
async fn an_invalid_record_is_kept_until_it_is_removed() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-invalid").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    let other_form = json!({"version": 2});
    create_lease(&plane, &other_form).await?;
    let collector = Collector::start_as(&plane, plane.kubeconfig(), "elected", &EXPIRING_LEASE).await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let dependent = dynamic_client
        .create(crd.instance("dependent").owned_by(&owner))
        .await?;
    collector.wait_until_observes(&[&dependent]).await?;
    break_conversion(&plane, &[&crd]).await?;
    collector.wait_until_not_synced().await?;

    dynamic_client.delete(&owner, Policy::Orphan).await?;
    let words = ["is invalid; correct or remove it"];
    dynamic_client.wait_for_event(&[&owner], BLOCKED, &words).await?;
    let found = annotation(&plane).await?;
    ensure!(found.as_ref() == Some(&other_form), "{found:?}");

    let leases: Api<Lease> = Api::namespaced(plane.client()?, "kube-system");
    let removal = json!({"metadata": {"annotations": {ANNOTATION: null}}});
    leases
        .patch(LEASE, &PatchParams::default(), &Patch::Merge(&removal))
        .await?;
    dynamic_client.wait_until_gone(&owner).await?;
    let found = annotation(&plane).await?;
    ensure!(found.is_some(), "the owner is not recorded");
    crd.repair_conversion().await?;
    wait_until_released(&dynamic_client, &dependent).await
}

/// Two collectors try to finish the same deletion: one with a full annotation, and one without
/// leader election.
#[tokio::test]
async fn an_orphan_deletion_waits_while_the_owner_cannot_be_recorded() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-unrecorded").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    let full = fill_annotation(&plane).await?;
    let elected = Collector::start_as(&plane, plane.kubeconfig(), "elected", &EXPIRING_LEASE).await?;
    let alone = Collector::start_as(&plane, plane.kubeconfig(), "alone", &[]).await?;
    let owner = dynamic_client.create(config_map("owner")).await?;
    let dependent = dynamic_client
        .create(crd.instance("dependent").owned_by(&owner))
        .await?;
    for collector in [&elected, &alone] {
        collector.wait_until_observes(&[&dependent]).await?;
    }
    break_conversion(&plane, &[&crd]).await?;
    for collector in [&elected, &alone] {
        collector.wait_until_not_synced().await?;
    }

    dynamic_client.delete(&owner, Policy::Orphan).await?;
    for words in ["is full", "without leader election"] {
        dynamic_client.wait_for_event(&[&owner], BLOCKED, &[words]).await?;
    }
    let owner_now = dynamic_client.get(&owner).await?;
    ensure!(owner_now.finalizers() == ["orphan"], "{:?}", owner_now.finalizers());
    let found = annotation(&plane).await?;
    ensure!(found.as_ref() == Some(&full), "{found:?}");
    let uid = owner.metadata.uid.as_deref().unwrap_or_default();
    let (_, explanation) = elected.page(&format!("explain?uid={uid}")).await?;
    ensure!(explanation.contains("is full"), "{explanation}");

    crd.repair_conversion().await?;
    dynamic_client.wait_until_gone(&owner).await?;
    wait_until_released(&dynamic_client, &dependent).await
}
