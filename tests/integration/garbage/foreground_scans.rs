//! Tests of owners that are deleted in the foreground while the graph lacks a dependent.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat, eventually};
use serde_json::json;

use super::collector::Collector;
use crate::fixtures::{
    LIMIT, RETRY_LIMIT,
    dynamic_client::{DynamicClient, Policy, ensure_throughout},
    object_builder::{ObjectBuilder, config_map, secret},
};

/// A finalizer that no controller handles.
const UNHANDLED: &str = "x/y";

/// An owner, and a collector behind a proxy.
struct ForegroundScan {
    // The fields are dropped in this order.
    collector: Collector,
    proxy: FaultProxy,
    dynamic_client: DynamicClient,
    owner: DynamicObject,
    _plane: ControlPlane,
}

impl ForegroundScan {
    async fn start(prefix: &str) -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let dynamic_client = DynamicClient::new(&plane, prefix).await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), prefix)?;
        let collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
        collector.wait_until_synced().await?;
        let owner = dynamic_client.create(config_map("owner")).await?;
        Ok(Self {
            collector,
            proxy,
            dynamic_client,
            owner,
            _plane: plane,
        })
    }

    fn dependent(&self, name: &str) -> ObjectBuilder {
        secret(name).blocking(&self.owner, true)
    }

    /// Waits until the collector has deleted the dependent, whose finalizer keeps it, and checks
    /// that the owner waits for it.
    async fn verify_waits_for(&self, dependent: &DynamicObject) -> Result<()> {
        let Self {
            dynamic_client, owner, ..
        } = self;
        eventually(RETRY_LIMIT, "the dependent to be deleted", || async {
            let found = dynamic_client.get(dependent).await?;
            ensure!(found.metadata.deletion_timestamp.is_some(), "{:?}", found.metadata);
            anyhow::Ok(())
        })
        .await?;
        dynamic_client.catch_up().await?;
        ensure_throughout(Duration::from_secs(1), || async {
            dynamic_client.get(owner).await?;
            Ok(())
        })
        .await?;
        let secrets: Api<Secret> = Api::namespaced(dynamic_client.client().clone(), dynamic_client.name());
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        secrets
            .patch(&dependent.name_any(), &PatchParams::default(), &patch)
            .await?;
        dynamic_client.wait_until_gone(owner).await
    }
}

/// The collector may list Secrets in the namespace, but not in the cluster.
#[tokio::test]
async fn a_foreground_deletion_waits_for_a_dependent_in_a_resource_that_is_not_synced() -> Result<()> {
    let scan = ForegroundScan::start("gc-unsynced").await?;
    let forbidden = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "not in the cluster");
    scan.proxy.respond(
        Matcher::any().path_prefix("/api/v1/secrets"),
        forbidden,
        Repeat::UntilHealed,
    );
    scan.proxy.reset();
    scan.collector.wait_until_not_synced().await?;
    let dependent = scan.dependent("dependent").finalizer(UNHANDLED);
    let dependent = scan.dynamic_client.create(dependent).await?;
    scan.dynamic_client.delete(&scan.owner, Policy::Foreground).await?;
    scan.verify_waits_for(&dependent).await
}

/// The watch of Secrets lags. It reports that the known dependent is gone, and reports the other
/// dependent later.
#[tokio::test]
async fn a_foreground_deletion_waits_for_a_dependent_that_no_watch_has_reported() -> Result<()> {
    let scan = ForegroundScan::start("gc-unreported").await?;
    let known = scan.dynamic_client.create(scan.dependent("known")).await?;
    scan.collector.wait_until_observes(&[&known]).await?;
    let watches = Matcher::watches().resource("secrets");
    let lag = scan
        .proxy
        .delay_responses(watches, Duration::from_secs(3), Repeat::UntilHealed);
    scan.proxy.reset();
    lag.wait_for_matched(1, LIMIT).await?;
    scan.dynamic_client.delete(&scan.owner, Policy::Foreground).await?;
    scan.dynamic_client.wait_until_gone(&known).await?;
    let unreported = scan.dependent("unreported").finalizer(UNHANDLED);
    let unreported = scan.dynamic_client.create(unreported).await?;
    scan.verify_waits_for(&unreported).await
}

/// The collector may not list Secrets at all.
#[tokio::test]
async fn a_foreground_deletion_ends_without_a_resource_that_cannot_be_listed() -> Result<()> {
    let scan = ForegroundScan::start("gc-forbidden").await?;
    let forbidden = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "not at all");
    let lists = Matcher::lists().resource("secrets");
    let lists = scan.proxy.respond(lists, forbidden.clone(), Repeat::UntilHealed);
    let watches = Matcher::watches().resource("secrets");
    scan.proxy.respond(watches, forbidden, Repeat::UntilHealed);
    scan.proxy.reset();
    scan.collector.wait_until_not_synced().await?;
    let listed = lists.matched();
    scan.dynamic_client.delete(&scan.owner, Policy::Foreground).await?;
    lists.wait_for_matched(listed + 2, LIMIT).await?;
    scan.dynamic_client.get(&scan.owner).await?;
    scan.dynamic_client.wait_until_gone(&scan.owner).await
}
