//! Tests of retries: the failing objects of one namespace do not delay those of another.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use portreeve_testing::{CannedResponse, ControlPlane, Fault, FaultProxy, Matcher, PooledPlane, Repeat, eventually};
use serde_json::{Value, json};

use super::collector::Collector;
use crate::fixtures::{
    LIMIT,
    dynamic_client::{DynamicClient, ensure_throughout},
    object_builder::{config_map, secret},
};

/// One retry in two seconds for each of the collector's two queues.
const FLAGS: [&str; 2] = ["--retry-qps=1", "--retry-burst=1"];
/// The number of failing objects. Their retries take three minutes.
const FAILING: u32 = 90;
/// The time limit of a retry in another namespace, several times what its turn takes.
const PROMPT: Duration = Duration::from_secs(20);
const HELD: &str = "workqueue_held_retries";
const QUEUE: &str = r#"name="garbage_collector_attempt_to_delete""#;

struct Tenants {
    // The fields are dropped in this order.
    collector: Collector,
    failing: DynamicClient,
    other: DynamicClient,
    proxy: FaultProxy,
    _plane: PooledPlane,
}

impl Tenants {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let proxy = FaultProxy::start(&plane).await?;
        let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "collector")?;
        let collector = Collector::start_as(&plane, &kubeconfig, "collector", &FLAGS).await?;
        collector.wait_until_synced().await?;
        Ok(Self {
            collector,
            failing: DynamicClient::new(&plane, "failing").await?,
            other: DynamicClient::new(&plane, "other").await?,
            proxy,
            _plane: plane,
        })
    }

    /// Creates objects in the namespace `failing`. Each has its own owner of this kind, which does
    /// not exist.
    async fn create_failing(&self, api_version: &str, kind: &str) -> Result<()> {
        let objects = stream::iter(0..FAILING).map(|number| {
            let object = config_map(&format!("failing-{number}"));
            self.failing.create(object.owner(absent(api_version, kind, number)))
        });
        objects.buffer_unordered(8).try_for_each(|_| async { Ok(()) }).await
    }

    async fn wait_for(&self, metric: &str, label: &str, least: f64) -> Result<()> {
        eventually(LIMIT, &format!("{metric}{{{label}}} to be {least}"), || async {
            let found = self.collector.daemon.admin.metrics().await?.sum(metric, &[label]);
            ensure!(found >= least, "it is {found}");
            anyhow::Ok(())
        })
        .await
    }

    /// Creates garbage in the namespace `other`, whose first deletion fails. Ensures that it is
    /// deleted soon.
    async fn ensure_prompt_retry(&self) -> Result<()> {
        let deletions = Matcher::any().method("DELETE").namespace(self.other.name());
        let error = CannedResponse::internal_error();
        let failed = self.proxy.respond(deletions, error, Repeat::Next(1));
        let owner = absent("v1", "ConfigMap", FAILING);
        let garbage = self.other.create(config_map("garbage").owner(owner)).await?;
        failed.wait_for_applied(1, LIMIT).await?;
        eventually(PROMPT, "the retry of the other namespace", || async {
            ensure!(self.other.find(&garbage).await?.is_none(), "the object still exists");
            anyhow::Ok(())
        })
        .await
    }
}

fn absent(api_version: &str, kind: &str, number: u32) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": "absent", "uid": format!("absent-{number}")})
}

#[tokio::test]
async fn objects_with_an_owner_of_an_unserved_kind_do_not_use_up_retries() -> Result<()> {
    let tenants = Tenants::start().await?;
    tenants.create_failing("example.com/v1", "Unserved").await?;
    let (attempts, unknown) = ("gc_attempts_total", r#"result="unknown""#);
    tenants.wait_for(attempts, unknown, FAILING.into()).await?;
    tenants.ensure_prompt_retry().await?;
    let metrics = tenants.collector.daemon.admin.metrics().await?;
    let (held, tried) = (metrics.sum(HELD, &[QUEUE]), metrics.sum(attempts, &[unknown]));
    ensure!(held == 0.0, "{held} retries are held");
    ensure!(tried <= f64::from(2 * FAILING), "{tried} attempts");
    Ok(())
}

#[tokio::test]
async fn namespaces_take_turns_to_retry() -> Result<()> {
    let tenants = Tenants::start().await?;
    let deletions = Matcher::any().method("DELETE").namespace(tenants.failing.name());
    let rejection = CannedResponse::status(StatusCode::FORBIDDEN, "Forbidden", "rejected (fault proxy)");
    tenants.proxy.respond(deletions, rejection, Repeat::UntilHealed);
    tenants.create_failing("v1", "ConfigMap").await?;
    tenants.wait_for(HELD, QUEUE, f64::from(FAILING - 10)).await?;
    tenants.ensure_prompt_retry().await
}

/// Reads of owners in one resource have no response. The collector sends few of them, and works on
/// other objects.
#[tokio::test]
async fn reads_without_a_response_do_not_occupy_all_workers() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-hanging").await?;
    for number in 0..100 {
        let owner = dynamic_client.create(config_map(&format!("owner-{number}"))).await?;
        let dependent = secret(&format!("dependent-{number}")).owned_by(&owner);
        dynamic_client.create(dependent).await?;
    }
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "hanging")?;
    let config_maps = Matcher::any().method("GET").resource("configmaps");
    proxy.fault(config_maps, Fault::BlackHole, Repeat::UntilHealed);
    let collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
    collector
        .daemon
        .wait_for_line(&[
            "failed to read objects of the resource",
            "configmaps",
            "no complete response",
        ])
        .await?;
    let reads = proxy.count(Matcher::objects().resource("configmaps"));
    let nobody = json!({"apiVersion": "v1", "kind": "Service", "name": "nobody", "uid": "nobody"});
    let canary = dynamic_client.create(secret("canary").owner(nobody)).await?;
    dynamic_client.wait_until_gone(&canary).await?;
    ensure_throughout(Duration::from_secs(10), || async {
        // The reads that were already waiting for a worker, and the probes.
        ensure!(reads.matched() <= 30, "{} reads", reads.matched());
        Ok(())
    })
    .await?;

    proxy.heal();
    collector.wait_until_synced().await?;
    dynamic_client.catch_up().await
}

/// The apiserver answers each deletion of one object with 500, as when it cannot reach a webhook.
#[tokio::test]
async fn a_lasting_failure_is_reported_by_an_event() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let dynamic_client = DynamicClient::new(&plane, "gc-failing").await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "failing")?;
    let failure = CannedResponse::status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "no webhook");
    let deletions = Matcher::any().method("DELETE").name("failing");
    proxy.respond(deletions, failure, Repeat::UntilHealed);
    let _collector = Collector::start_as(&plane, &kubeconfig, "collector", &[]).await?;
    let nobody = json!({"apiVersion": "v1", "kind": "Service", "name": "nobody", "uid": "nobody"});
    let failing = dynamic_client.create(secret("failing").owner(nobody)).await?;
    dynamic_client
        .wait_for_event(&[&failing], "GarbageCollectionFailed", &[])
        .await?;
    proxy.heal();
    dynamic_client.wait_until_gone(&failing).await
}
