//! What keeps the controllers from being settled, and requests that are not valid.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use portreeve_testing::{
    BodyFault, CannedResponse, ControlPlane, Fault, FaultProxy, Matcher, PooledPlane, Repeat, Testenv, eventually,
};
use serde_json::Value;

use super::environment::{client_and_testenv, ensure_gone, start};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, Policy},
    object_builder::{CONFIG_MAPS, config_map},
};

/// The controllers behind a proxy.
struct Faulty {
    // The fields are dropped in this order.
    testenv: Testenv,
    proxy: FaultProxy,
    client: DynamicClient,
    _plane: PooledPlane,
}

impl Faulty {
    /// Starts the collector alone, which creates nothing, after `fault` has been applied.
    async fn start(fault: impl FnOnce(&FaultProxy)) -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "testenv")?;
        fault(&proxy);
        Ok(Self {
            testenv: start(&kubeconfig, &["--controllers=garbagecollector"]).await?,
            client: DynamicClient::new(&plane, "faulty").await?,
            proxy,
            _plane: plane,
        })
    }

    /// Waits until the controllers are not settled because of an item with these words.
    async fn wait_until_left(&self, words: &str) -> Result<()> {
        eventually(LIMIT, &format!("{words:?} to be left to do"), || async {
            let (status, body) = self.testenv.get("/settled?timeout=2s").await?;
            ensure!(status == StatusCode::REQUEST_TIMEOUT, "{status}: {body}");
            let body: Value = serde_json::from_str(&body)?;
            let left = body["left"].as_array().context("no list")?;
            let mut left = left.iter().filter_map(Value::as_str);
            ensure!(left.any(|item| item.contains(words)), "{body:#}");
            anyhow::Ok(())
        })
        .await
    }
}

/// The watch reports nothing, as if it was stuck, while lists work.
fn stop_watch_events(proxy: &FaultProxy) {
    let watches = Matcher::watches().path_prefix(CONFIG_MAPS.collection_path(None));
    proxy.fault(watches, Fault::Body(BodyFault::StallAt(0)), Repeat::UntilHealed);
}

#[tokio::test]
async fn changes_that_a_watch_has_not_reported_are_left_to_do() -> Result<()> {
    let faulty = Faulty::start(stop_watch_events).await?;
    let Faulty {
        testenv, proxy, client, ..
    } = &faulty;
    testenv.settled().await?;
    let owner = client.create(config_map("owner")).await?;
    let child = client.create(config_map("child").owned_by(&owner)).await?;
    client.delete(&owner, Policy::Background).await?;
    faulty
        .wait_until_left("configmaps.v1: its cache is at resourceVersion")
        .await?;
    client.get(&child).await?;
    proxy.heal();
    proxy.reset();
    testenv.settled().await?;
    ensure_gone(client, &[&child]).await
}

/// Nothing is newer in the list than in the cache, but an object is missing.
#[tokio::test]
async fn a_deletion_that_a_watch_has_not_reported_is_left_to_do() -> Result<()> {
    let faulty = Faulty::start(|_| ()).await?;
    let Faulty {
        testenv, proxy, client, ..
    } = &faulty;
    let owner = client.create(config_map("owner")).await?;
    let child = client.create(config_map("child").owned_by(&owner)).await?;
    testenv.settled().await?;
    stop_watch_events(proxy);
    proxy.reset();
    testenv.settled().await?;
    client.delete(&owner, Policy::Background).await?;
    faulty
        .wait_until_left("configmaps.v1: its cache is at resourceVersion")
        .await?;
    proxy.heal();
    proxy.reset();
    testenv.settled().await?;
    ensure_gone(client, &[&child]).await
}

#[tokio::test]
async fn a_failed_deletion_is_left_to_do_while_it_waits_for_its_retry() -> Result<()> {
    let faulty = Faulty::start(|_| ()).await?;
    let Faulty {
        testenv, proxy, client, ..
    } = &faulty;
    let owner = client.create(config_map("owner")).await?;
    let child = client.create(config_map("child").owned_by(&owner)).await?;
    let deletions = Matcher::any().method("DELETE").path_prefix("/api/v1/namespaces");
    proxy.respond(deletions, CannedResponse::internal_error(), Repeat::UntilHealed);
    client.delete(&owner, Policy::Background).await?;
    faulty
        .wait_until_left("garbage-collector-controller: garbage_collector_attempt_to_delete: ")
        .await?;
    client.get(&child).await?;
    proxy.heal();
    testenv.settled().await?;
    ensure_gone(client, &[&child]).await
}

#[tokio::test]
async fn a_list_that_is_rejected_leaves_its_watch_to_be_compared() -> Result<()> {
    let faulty = Faulty::start(|_| ()).await?;
    let Faulty { testenv, proxy, .. } = &faulty;
    testenv.settled().await?;
    proxy.respond(
        Matcher::lists(),
        CannedResponse::too_many_requests(1),
        Repeat::UntilHealed,
    );
    faulty.wait_until_left("configmaps.v1: failed to list it").await?;
    proxy.heal();
    testenv.settled().await
}

#[tokio::test]
async fn invalid_parameters_are_rejected_with_the_way_out() -> Result<()> {
    let (_, testenv) = client_and_testenv("parameters").await?;
    for (query, words) in [
        ("timeout=1h", "invalid timeout \"1h\": give a duration from 1ms to 50s"),
        ("timeout=soon", "invalid timeout \"soon\""),
        (
            "timeuot=1s",
            "unknown parameter \"timeuot\": there are timeout and verbose",
        ),
    ] {
        let (status, body) = testenv.get(&format!("/settled?{query}")).await?;
        ensure!(
            status == StatusCode::BAD_REQUEST && body.contains(words),
            "{status}: {body}"
        );
    }
    Ok(())
}
