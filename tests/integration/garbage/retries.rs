//! Tests of retries: the failing objects of one namespace do not delay those of another.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat, eventually};
use serde_json::{Value, json};

use super::collector::Collector;
use crate::fixtures::{LIMIT, dynamic_client::DynamicClient, object_builder::config_map};

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
    _plane: ControlPlane,
}

impl Tenants {
    async fn start() -> Result<Self> {
        let plane = ControlPlane::start().await?;
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
