//! Tests of an aggregated API: another apiserver with an etcd of its own serves a resource.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::api::DynamicObject;
use portreeve_testing::{FaultProxy, Matcher, eventually};
use serde_json::json;
use tokio::time::Instant;

use super::{
    collector::Collector,
    restore::{back_up, increase_versions, restore},
    unlistable::{annotation, wait_until_released},
};
use crate::fixtures::{
    LIMIT,
    aggregated_api::AggregatedApi,
    daemon::LONG_LEASE,
    dynamic_client::{Policy, ensure_throughout},
    object_builder::{ObjectBuilder, config_map, secret},
    test_crd::GROUP,
};

impl AggregatedApi {
    /// Creates a cluster-scoped owner, and a dependent of it in the aggregated API.
    async fn create_family(&self) -> Result<(DynamicObject, DynamicObject)> {
        let owner = ObjectBuilder::new("rbac.authorization.k8s.io/v1", "ClusterRole", "owner");
        let owner = self.dynamic_client.create_for_cluster(owner).await?;
        let dependent = self.crd.instance("dependent").blocking(&owner, true);
        let dependent = self.dynamic_client.create_for_cluster(dependent).await?;
        Ok((owner, dependent))
    }

    /// Checks that the collector removes the owner in time, and remembers that its dependents in
    /// the aggregated API are to be orphaned.
    async fn verify_orphaned_without_api(&self, owner: &DynamicObject) -> Result<()> {
        self.dynamic_client.delete(owner, Policy::Orphan).await?;
        self.dynamic_client.wait_until_gone(owner).await?;
        let found = annotation(&self.main).await?;
        let expected = json!([{"owners": [owner.metadata.uid], "resources": [format!("*.{GROUP}")]}]);
        ensure!(found.as_ref() == Some(&expected), "{found:?}");
        Ok(())
    }

    /// Waits until the dependent has no owner, and nothing is left to be orphaned.
    async fn verify_released(&self, dependent: &DynamicObject) -> Result<()> {
        wait_until_released(&self.dynamic_client, dependent).await?;
        eventually(LIMIT, "the owner to be forgotten", || async {
            let found = annotation(&self.main).await?;
            ensure!(found.is_none(), "{found:?}");
            anyhow::Ok(())
        })
        .await
    }
}

/// Waits until the collector no longer watches the kind of an object that it knows.
pub(super) async fn wait_until_virtual(collector: &Collector, object: &DynamicObject) -> Result<()> {
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    eventually(LIMIT, "the collector to stop watching an object", || async {
        let graph = collector.graph_of(uid).await?;
        let is_virtual = graph.vertices.get(uid).is_some_and(|vertex| vertex.is("virtual"));
        ensure!(is_virtual, "{graph:?}");
        anyhow::Ok(())
    })
    .await
}

/// Waits until the collector has noticed that the other apiserver was restored.
async fn wait_until_noticed(collector: &Collector) -> Result<()> {
    let process = &collector.daemon.process;
    eventually(LIMIT, "the decrease of the versions", || async {
        let metrics = collector.daemon.admin.metrics().await?;
        let decreases = metrics.sum("gc_version_decreases_total", &[]);
        // If the servers start slowly, discovery finds no such resource meanwhile, and its next
        // informer knows no version.
        let log = fs::read_to_string(process.log().context("no log")?)?;
        let is_new = log.contains("stopping collection of resource");
        ensure!(
            decreases >= 1.0 || is_new,
            "no resourceVersion was seen to decrease{}",
            process.log_tail()
        );
        anyhow::Ok(())
    })
    .await
}

/// The versions of an aggregated API restart on their own and concern only themselves.
#[tokio::test]
async fn a_restore_of_an_aggregated_api_concerns_only_its_objects() -> Result<()> {
    let api = AggregatedApi::start("gc-aggregated").await?;
    api.register().await?;
    let (client, crd) = (&api.dynamic_client, &api.crd);
    let create = |builder: ObjectBuilder| client.create_for_cluster(builder);
    let owner = create(crd.instance("owner")).await?;
    let mut objects = vec![owner.clone()];
    for number in 0..5 {
        objects.push(create(crd.instance(&format!("child-{number}")).owned_by(&owner)).await?);
    }
    let proxy = FaultProxy::start(&api.main).await?;
    let kubeconfig = proxy.kubeconfig(api.main.kubeconfig(), "aggregated")?;
    let collector = Collector::start_as(&api.main, &kubeconfig, "collector", &[]).await?;
    let children: Vec<&DynamicObject> = objects.iter().skip(1).collect();
    collector.wait_until_observes(&children).await?;
    let main_owner = client.create(config_map("owner")).await?;
    let main_child = client.create(secret("child").owned_by(&main_owner)).await?;
    collector.wait_until_observes(&[&main_child]).await?;
    back_up(&api.other).await?;

    let unrelated = create(crd.instance("unrelated")).await?;
    increase_versions(client, &unrelated).await?;
    client.delete(&owner, Policy::Background).await?;
    for child in &children {
        client.wait_until_gone(child).await?;
    }
    collector.wait_until_synced().await?;
    let main_lists = proxy.count(Matcher::lists().resource("secrets"));
    restore(&api.other).await?;
    wait_until_noticed(&collector).await?;
    collector.wait_until_observes(&children).await?;
    ensure!(
        main_lists.matched() == 0,
        "a resource of the main store was listed again"
    );

    // The collector works, and deletes no restored object.
    client.catch_up().await?;
    ensure_throughout(Duration::from_secs(1), || async {
        for object in objects.iter().chain([&main_owner, &main_child]) {
            client.get(object).await?;
        }
        Ok(())
    })
    .await?;
    for owner in [&owner, &main_owner] {
        client.delete(owner, Policy::Background).await?;
    }
    for child in children.into_iter().chain([&main_child]) {
        client.wait_until_gone(child).await?;
    }
    Ok(())
}

/// The APIService is deleted and created again, as when its apiserver is installed again.
#[tokio::test]
async fn known_dependents_are_orphaned_when_their_api_returns() -> Result<()> {
    let api = AggregatedApi::start("gc-api-returns").await?;
    let registration = api.register().await?;
    let (owner, dependent) = api.create_family().await?;
    let collector = Collector::start(&api.main, &LONG_LEASE).await?;
    collector.wait_until_observes(&[&dependent]).await?;
    api.dynamic_client.delete(&registration, Policy::Background).await?;
    api.wait_until_served(false).await?;
    wait_until_virtual(&collector, &dependent).await?;

    api.verify_orphaned_without_api(&owner).await?;
    api.register().await?;
    api.verify_released(&dependent).await
}

/// The API of a dependent that blocks the deletion of its owner is not served.
#[tokio::test]
async fn a_foreground_deletion_ends_without_a_known_dependent_whose_api_is_gone() -> Result<()> {
    let api = AggregatedApi::start("gc-api-gone").await?;
    let registration = api.register().await?;
    let (owner, dependent) = api.create_family().await?;
    let collector = Collector::start(&api.main, &[]).await?;
    collector.wait_until_observes(&[&dependent]).await?;
    api.dynamic_client.delete(&registration, Policy::Background).await?;
    api.wait_until_served(false).await?;
    wait_until_virtual(&collector, &dependent).await?;

    let began = Instant::now();
    api.dynamic_client.delete(&owner, Policy::Foreground).await?;
    api.dynamic_client.wait_until_gone(&owner).await?;
    let took = began.elapsed();
    ensure!(took >= Duration::from_secs(25), "the owner was gone after {took:?}");
    api.register().await?;
    api.dynamic_client.wait_until_gone(&dependent).await
}

/// The apiserver of the API is away when the collector starts.
#[tokio::test]
async fn unknown_dependents_are_orphaned_when_their_api_returns() -> Result<()> {
    let api = AggregatedApi::start("gc-api-away").await?;
    api.register().await?;
    let (owner, dependent) = api.create_family().await?;
    api.other.apiserver().stop().await?;
    let collector = Collector::start(&api.main, &LONG_LEASE).await?;
    collector
        .daemon
        .wait_for_line(&["keeping the last known resources", GROUP])
        .await?;

    api.verify_orphaned_without_api(&owner).await?;
    api.other.apiserver().start().await?;
    api.verify_released(&dependent).await
}
