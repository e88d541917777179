//! Tests of what an owner that is deleted in the foreground waits for.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, Patch, PatchParams},
};
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, PooledPlane, Repeat, eventually};
use serde_json::json;
use tokio::time::Instant;

use super::collector::Collector;
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy, ensure_throughout},
    object_builder::{ObjectBuilder, config_map, secret},
};

/// A finalizer that no controller handles.
const UNHANDLED: &str = "x/y";
/// How long a deletion waits for a resource that is not synced.
const WAIT: Duration = Duration::from_secs(30);

/// An owner, and a collector behind a proxy.
struct ForegroundDeletion {
    // The fields are dropped in this order.
    collector: Collector,
    proxy: FaultProxy,
    dynamic_client: DynamicClient,
    owner: DynamicObject,
    _plane: PooledPlane,
}

impl ForegroundDeletion {
    async fn start(prefix: &str) -> Result<Self> {
        Self::start_with(prefix, &[]).await
    }

    /// Starts a collector with these flags.
    async fn start_with(prefix: &str, args: &[&str]) -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let dynamic_client = DynamicClient::new(&plane, prefix).await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), prefix)?;
        let collector = Collector::start_as(&plane, &kubeconfig, "collector", args).await?;
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

    /// Forbids the collector to list and watch Secrets, and waits until it has noticed.
    async fn forbid_secrets(&self) -> Result<()> {
        let secrets = Matcher::any().path_prefix("/api/v1/secrets");
        let forbidden = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "not in the cluster");
        self.proxy.respond(secrets, forbidden, Repeat::UntilHealed);
        self.proxy.reset();
        self.collector.wait_until_not_synced().await
    }

    /// Waits until the collector has deleted the dependent, whose finalizer keeps it, and checks
    /// that the owner waits for it.
    async fn verify_waits_for(&self, dependent: &DynamicObject) -> Result<()> {
        let Self {
            dynamic_client, owner, ..
        } = self;
        eventually(LIMIT, "the dependent to be deleted", || async {
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

/// The deletion rests on the watches alone, as in kube-controller-manager.
#[tokio::test]
async fn a_foreground_deletion_of_synced_resources_sends_no_list() -> Result<()> {
    let setup = ForegroundDeletion::start("gc-synced").await?;
    let dependents = [
        setup.dynamic_client.create(setup.dependent("first")).await?,
        setup.dynamic_client.create(setup.dependent("second")).await?,
    ];
    setup
        .collector
        .wait_until_observes(&[&dependents[0], &dependents[1]])
        .await?;
    let lists = setup.proxy.count(Matcher::lists().resource("secrets"));
    setup.dynamic_client.delete(&setup.owner, Policy::Foreground).await?;
    setup.dynamic_client.wait_until_gone(&setup.owner).await?;
    for dependent in &dependents {
        let found = setup.dynamic_client.find(dependent).await?;
        ensure!(found.is_none(), "{found:?}");
    }
    ensure!(lists.matched() == 0, "{} lists", lists.matched());
    Ok(())
}

/// While the owner waits, the only worker does other work.
#[tokio::test]
async fn a_foreground_deletion_waits_for_a_resource_that_is_not_synced_without_a_worker() -> Result<()> {
    let setup = ForegroundDeletion::start_with("gc-unsynced", &["--concurrent-gc-syncs=1"]).await?;
    setup.forbid_secrets().await?;
    let lists = Matcher::lists()
        .resource("secrets")
        .namespace(setup.dynamic_client.name());
    let lists = setup.proxy.count(lists);
    let dependent = setup.dependent("dependent").finalizer(UNHANDLED);
    let dependent = setup.dynamic_client.create(dependent).await?;
    setup.dynamic_client.delete(&setup.owner, Policy::Foreground).await?;
    setup.dynamic_client.catch_up().await?;
    setup.dynamic_client.get(&setup.owner).await?;
    ensure!(lists.matched() == 0, "{} lists", lists.matched());
    let uid = setup.owner.metadata.uid.as_deref().unwrap_or_default();
    let (_, text) = setup.collector.page(&format!("explain?uid={uid}")).await?;
    ensure!(text.contains("not synced") && text.contains("secrets.v1"), "{text}");
    setup.proxy.heal();
    setup.verify_waits_for(&dependent).await
}

/// The watch of Secrets lags. It reports that the known dependent is gone, and reports the other
/// dependent later.
#[tokio::test]
async fn a_dependent_that_turns_up_after_the_end_of_a_foreground_deletion_is_collected() -> Result<()> {
    let setup = ForegroundDeletion::start("gc-unreported").await?;
    let known = setup.dynamic_client.create(setup.dependent("known")).await?;
    setup.collector.wait_until_observes(&[&known]).await?;
    let watches = Matcher::watches().resource("secrets");
    let lag = setup
        .proxy
        .delay_responses(watches, Duration::from_secs(3), Repeat::UntilHealed);
    setup.proxy.reset();
    lag.wait_for_matched(1, LIMIT).await?;
    setup.dynamic_client.delete(&setup.owner, Policy::Foreground).await?;
    setup.dynamic_client.wait_until_gone(&known).await?;
    let unreported = setup.dynamic_client.create(setup.dependent("unreported")).await?;
    setup.dynamic_client.wait_until_gone(&setup.owner).await?;
    setup.dynamic_client.wait_until_gone(&unreported).await
}

/// The collector may not list Secrets at all.
#[tokio::test]
async fn a_foreground_deletion_ends_without_a_resource_that_cannot_be_listed() -> Result<()> {
    let setup = ForegroundDeletion::start("gc-forbidden").await?;
    let began = Instant::now();
    setup.forbid_secrets().await?;
    setup.dynamic_client.delete(&setup.owner, Policy::Foreground).await?;
    setup.dynamic_client.wait_until_gone(&setup.owner).await?;
    let took = began.elapsed();
    ensure!(took >= WAIT, "the owner was gone after {took:?}");
    let words = ["finishing foreground deletion without resources", "secrets.v1"];
    setup.collector.daemon.wait_for_line(&words).await?;
    Ok(())
}
