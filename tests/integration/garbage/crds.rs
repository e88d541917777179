//! CRDs that are created and deleted while a collector runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::DynamicObject;
use portreeve_testing::{BodyFault, ControlPlane, Fault, FaultProxy, Matcher, Repeat, eventually};

use super::{aggregated::wait_until_virtual, collector::Collector, shared, unlistable::break_conversion};
use crate::fixtures::test_crd::TestCrd;
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy, ensure_throughout},
    object_builder::config_map,
};

#[tokio::test]
async fn silent_watches_are_reported_as_stale_until_they_receive_data() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "deaf")?;
    let collector = Collector::start_as(&plane, &kubeconfig, "deaf", &["--watch-idle-timeout=3s"]).await?;
    collector.wait_until_synced().await?;
    proxy.hold_responses();
    eventually(LIMIT, "stale watches in /readyz", || async {
        let (_, text) = collector.daemon.admin.get("/readyz?verbose").await?;
        let line = text
            .lines()
            .find(|line| line.contains("gc/resources"))
            .unwrap_or_default();
        ensure!(
            line.starts_with("[+]") && line.contains("stale: ") && line.contains("pods.v1, last contact"),
            "{text}"
        );
        anyhow::Ok(())
    })
    .await?;
    proxy.heal();
    eventually(LIMIT, "no watch to be stale", || async {
        ensure!(collector.is_synced().await?, "some watches are stale");
        anyhow::Ok(())
    })
    .await
}

#[tokio::test]
async fn watches_of_quiet_resources_are_restarted_without_log_messages() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "quiet")?;
    let watches = proxy.count(Matcher::watches().resource("podtemplates"));
    let collector = Collector::start_as(&plane, &kubeconfig, "quiet", &["--watch-idle-timeout=2s"]).await?;
    watches.wait_for_matched(3, LIMIT).await?;
    collector.wait_until_synced().await?;
    let log = collector.daemon.log()?;
    let of_resource = log.lines().filter(|line| line.contains("podtemplates"));
    let messages: Vec<_> = of_resource.filter(|line| line.contains("watch")).collect();
    ensure!(messages.is_empty(), "{messages:#?}");
    Ok(())
}

#[tokio::test]
async fn watches_of_a_removed_crd_end_soon_without_warnings() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "definitions")?;
    let collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-removed").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    let requests = proxy.count(Matcher::any().resource(crd.plural()));
    let resource = crd.resource("v1beta1");
    for _ in 0..2 {
        let owner = dynamic_client.create(crd.instance("owner")).await?;
        let dependent = dynamic_client.create(config_map("dependent").owned_by(&owner)).await?;
        collector.wait_until_observes(&[&owner, &dependent]).await?;
        ensure!(
            is_watched(&collector, &resource).await?,
            "gc_monitor_synced has no line for {resource}"
        );

        crd.delete().await?;
        eventually(LIMIT, "the end of the watch", || async {
            ensure!(
                !is_watched(&collector, &resource).await?,
                "gc_monitor_synced still has a line for {resource}"
            );
            anyhow::Ok(())
        })
        .await?;
        dynamic_client.wait_until_gone(&dependent).await?;
        // A read of the owner may still be on its way.
        eventually(LIMIT, "the end of the requests for the removed resource", || async {
            let before = requests.matched();
            ensure_throughout(Duration::from_secs(2), || async {
                ensure!(
                    requests.matched() == before,
                    "the collector still requests the removed resource"
                );
                Ok(())
            })
            .await
        })
        .await?;
        crd.create_again().await?;
    }
    let log = collector.daemon.log()?;
    // The apiserver answers so while it creates the storage of the new definition.
    let is_expected = |line: &str| line.contains("storage is (re)initializing");
    let of_resource = log
        .lines()
        .filter(|line| line.contains(&crd.plural()) && !is_expected(line));
    let warnings: Vec<_> = of_resource
        .filter(|line| ["WARN", "ERROR"].iter().any(|level| line.contains(level)))
        .collect();
    ensure!(warnings.is_empty(), "{warnings:#?}");
    collector.wait_until_synced().await
}

/// Returns whether the collector watches a resource.
async fn is_watched(collector: &Collector, resource: &str) -> Result<bool> {
    let metrics = collector.daemon.admin.metrics().await?;
    Ok(metrics.values("gc_monitor_synced", "gvr").contains(resource))
}

/// The watch never reports the deletions. A kind that is not served proves nothing about its
/// objects, so the dependents are kept until the apiserver answers for the owner itself.
#[tokio::test]
async fn dependents_of_a_deleted_crd_are_kept_until_a_read_of_the_owner_proves_it_absent() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "removed")?;
    for is_namespaced in [true, false] {
        let dynamic_client = DynamicClient::new(&plane, "gc-crd-deleted").await?;
        let (crd, owner) = crd_with_owner(&dynamic_client, is_namespaced).await?;
        let dependent = config_map("dependent").owned_by(&owner);
        let dependent = dynamic_client.create(dependent).await?;
        let watches = Matcher::watches().resource(crd.plural());
        let stalled = proxy.fault(watches, Fault::Body(BodyFault::StallAt(0)), Repeat::UntilHealed);
        let collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
        collector.wait_until_observes(&[&owner, &dependent]).await?;
        stalled.wait_for_applied(1, LIMIT).await?;
        crd.delete().await?;
        verify_kept(&collector, &dynamic_client, &crd, &dependent).await?;
        proxy.heal();
        crd.create_again().await?;
        dynamic_client.wait_until_gone(&dependent).await?;
    }
    Ok(())
}

/// Creates a CRD and an object of its kind.
async fn crd_with_owner(dynamic_client: &DynamicClient, is_namespaced: bool) -> Result<(TestCrd, DynamicObject)> {
    if is_namespaced {
        let crd = TestCrd::namespaced(dynamic_client).await?;
        let owner = dynamic_client.create(crd.instance("owner")).await?;
        Ok((crd, owner))
    } else {
        let crd = TestCrd::cluster_scoped(dynamic_client).await?;
        let owner = dynamic_client.create_for_cluster(crd.instance("owner")).await?;
        Ok((crd, owner))
    }
}

/// Waits until the metric counts the owner as unknown. Checks that the dependent stays, and that
/// its explanation says why.
async fn verify_kept(
    collector: &Collector,
    dynamic_client: &DynamicClient,
    crd: &TestCrd,
    dependent: &DynamicObject,
) -> Result<()> {
    wait_for_unknown_owners(collector, crd, 1.0).await?;
    dynamic_client.catch_up().await?;
    ensure_throughout(Duration::from_secs(2), || async {
        let found = dynamic_client.get(dependent).await?;
        ensure!(found.metadata.deletion_timestamp.is_none(), "it is being deleted");
        Ok(())
    })
    .await?;
    let uid = dependent.metadata.uid.as_deref().unwrap_or_default();
    let (_, text) = collector.page(&format!("explain?uid={uid}")).await?;
    ensure!(
        text.contains("its kind is not served") && text.contains("It is kept"),
        "{text}"
    );
    Ok(())
}

/// Waits until this number of objects of the CRD are counted as unknown owners.
async fn wait_for_unknown_owners(collector: &Collector, crd: &TestCrd, expected: f64) -> Result<()> {
    eventually(LIMIT, &format!("{expected} unknown owners"), || async {
        let metrics = collector.daemon.admin.metrics().await?;
        let unknown = metrics.sum("gc_unknown_owners", &[crd.kind()]);
        ensure!((unknown - expected).abs() < 0.5, "{unknown} unknown owners");
        anyhow::Ok(())
    })
    .await
}

/// Creates the CRD again after its objects have stayed in etcd. The owner and the dependent are the
/// same as before, and the owner's deletion deletes the dependent.
async fn verify_returned(
    collector: &Collector,
    dynamic_client: &DynamicClient,
    crd: &TestCrd,
    owner: &DynamicObject,
    dependent: &DynamicObject,
) -> Result<()> {
    crd.create_again().await?;
    collector.wait_until_observes(&[owner, dependent]).await?;
    wait_for_unknown_owners(collector, crd, 0.0).await?;
    dynamic_client.catch_up().await?;
    dynamic_client.get(owner).await?;
    dynamic_client.get(dependent).await?;
    dynamic_client.delete(owner, Policy::Background).await?;
    dynamic_client.wait_until_gone(dependent).await
}

/// `DeleteCollection` skips the finalizer of CRDs, so their objects stay in etcd.
#[tokio::test]
async fn dependents_are_kept_when_a_deletion_of_the_collection_removes_their_owners_crd() -> Result<()> {
    for is_namespaced in [true, false] {
        let (dynamic_client, collector) = shared::client_and_collector("gc-crd-collection").await?;
        let (crd, owner) = crd_with_owner(&dynamic_client, is_namespaced).await?;
        let dependent = dynamic_client.create(config_map("dependent").owned_by(&owner)).await?;
        collector.wait_until_observes(&[&owner, &dependent]).await?;
        crd.delete_as_collection().await?;
        verify_kept(collector, &dynamic_client, &crd, &dependent).await?;
        verify_returned(collector, &dynamic_client, &crd, &owner, &dependent).await?;
    }
    Ok(())
}

/// The conversion webhook is unreachable, so the apiserver cannot delete the objects of the CRD.
/// Somebody removes the finalizer of the CRD.
#[tokio::test]
async fn dependents_are_kept_when_the_finalizer_of_their_owners_crd_is_removed() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let collector = Collector::start(&plane, &[]).await?;
    for is_namespaced in [true, false] {
        let dynamic_client = DynamicClient::new(&plane, "gc-crd-finalizer").await?;
        let (crd, owner) = crd_with_owner(&dynamic_client, is_namespaced).await?;
        let dependent = dynamic_client.create(config_map("dependent").owned_by(&owner)).await?;
        collector.wait_until_observes(&[&owner, &dependent]).await?;
        break_conversion(&plane, &[&crd]).await?;
        collector.wait_until_not_synced().await?;
        wait_until_virtual(&collector, &owner).await?;
        crd.delete_without_objects().await?;
        verify_kept(&collector, &dynamic_client, &crd, &dependent).await?;
        verify_returned(&collector, &dynamic_client, &crd, &owner, &dependent).await?;
    }
    Ok(())
}

/// A deletion that no running collector has observed proves nothing. A metric and the explanations
/// show it.
#[tokio::test]
async fn dependents_of_a_crd_that_was_deleted_before_the_start_are_reported() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-crd-away").await?;
    let crd = TestCrd::namespaced(&dynamic_client).await?;
    let owner = dynamic_client.create(crd.instance("owner")).await?;
    let dependent = dynamic_client.create(config_map("dependent").owned_by(&owner)).await?;
    crd.delete().await?;
    let collector = Collector::start(&plane, &[]).await?;
    collector.wait_until_synced().await?;
    verify_kept(&collector, &dynamic_client, &crd, &dependent).await?;
    dynamic_client.delete(&dependent, Policy::Background).await?;
    wait_for_unknown_owners(&collector, &crd, 0.0).await
}
