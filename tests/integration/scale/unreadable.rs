//! A resource that can no longer be read, with many objects: at first only its watch is rejected,
//! then every request.
//!
//! The full size is 30,000 objects.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use kube::api::DynamicObject;
use portreeve_testing::{CannedResponse, ControlPlane, FaultProxy, Matcher, Repeat, eventually};

use super::is_full_size;
use crate::fixtures::{
    LIMIT,
    daemon::Daemon,
    dynamic_client::{DynamicClient, Policy},
    object_builder::{config_map, secret},
};

const CONTROLLER: &str = "--controllers=garbage-collector-controller";
/// The number of clients that create objects.
const CLIENTS: usize = 16;
/// The number of the collector's workers. As many reads may be on their way when the first one is
/// rejected.
const WORKERS: u64 = 20;
/// How long the reads are counted once every object has been processed.
const WINDOW: Duration = Duration::from_secs(5);
/// The maximum number of reads in [`WINDOW`]: one object probes the resource.
const PROBES: u64 = 10;

fn objects() -> u32 {
    if is_full_size() { 30_000 } else { 100 }
}

/// The time limit of the steps that depend on the number of objects.
fn limit() -> Duration {
    if is_full_size() { Duration::from_mins(5) } else { LIMIT }
}

#[tokio::test]
async fn objects_of_a_resource_with_a_forbidden_watch_are_not_read_one_by_one() -> Result<()> {
    lose_access(StatusCode::FORBIDDEN, "Forbidden").await
}

#[tokio::test]
async fn objects_of_a_resource_that_is_not_found_are_not_read_one_by_one() -> Result<()> {
    lose_access(StatusCode::NOT_FOUND, "NotFound").await
}

async fn lose_access(status: StatusCode, reason: &str) -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "unreadable")?;
    let dynamic_client = DynamicClient::new(&plane, "unreadable").await?;
    let owner = create_objects(&dynamic_client).await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "collector", &[CONTROLLER]).await?;
    wait_for_nodes(&daemon, "observed", &dynamic_client).await?;

    // The collector loses the watch. No decision depends on any of the objects.
    let reads = proxy.count(Matcher::objects().method("GET").resource("secrets"));
    let rejected = |matcher: Matcher| {
        let response = CannedResponse::status(status, reason, "rejected by the test");
        proxy.respond(matcher.resource("secrets"), response, Repeat::UntilHealed)
    };
    rejected(Matcher::watches());
    rejected(Matcher::lists());
    proxy.reset();
    wait_for_nodes(&daemon, "virtual", &dynamic_client).await?;
    let without_decision = reads.matched();

    // Now every object is to be deleted, and none can be read.
    rejected(Matcher::objects());
    dynamic_client.delete(&owner, Policy::Background).await?;
    let before = reads.matched();
    eventually(limit(), "an attempt on every object", || async {
        let attempts = daemon
            .admin
            .metrics()
            .await?
            .sum("gc_attempts_total", &["action=\"noop\"", "unknown\""]);
        ensure!(attempts >= f64::from(objects()), "{attempts} attempts");
        anyhow::Ok(())
    })
    .await?;
    let for_attempts = reads.matched() - before;
    dynamic_client.catch_up().await?;
    let before = reads.matched();
    tokio::time::sleep(WINDOW).await;
    let probes = reads.matched() - before;
    ensure!(
        without_decision == 0,
        "{without_decision} objects were read although no decision depended on them"
    );
    ensure!(
        for_attempts < 2 * WORKERS,
        "{for_attempts} objects were read although the reads were rejected"
    );
    ensure!(probes <= PROBES, "{probes} reads in {WINDOW:?}");

    proxy.heal();
    eventually(limit(), "the deletion of every object", || async {
        let left = dynamic_client.list("v1", "Secret").await?.len();
        ensure!(left == 0, "{left} objects are left");
        anyhow::Ok(())
    })
    .await
}

/// Creates the objects. Returns their owner.
async fn create_objects(dynamic_client: &DynamicClient) -> Result<DynamicObject> {
    let owner = dynamic_client.create(config_map("owner")).await?;
    let secrets = (0..objects()).map(|number| {
        let secret = secret(&format!("secret-{number}")).owned_by(&owner);
        dynamic_client.create(secret)
    });
    let created = stream::iter(secrets).buffer_unordered(CLIENTS);
    created.try_for_each(|_| async { Ok(()) }).await?;
    Ok(owner)
}

/// Waits until the graph has all objects in this state, and the collector has processed them. Its
/// workers start only when every resource is synced.
async fn wait_for_nodes(daemon: &Daemon, state: &str, dynamic_client: &DynamicClient) -> Result<()> {
    eventually(limit(), &format!("{state} nodes"), || async {
        let labels = ["gvr=\"secrets.v1\"", &format!("state=\"{state}\"")];
        let nodes = daemon.admin.metrics().await?.sum("gc_graph_nodes", &labels);
        ensure!(nodes >= f64::from(objects()), "{nodes} nodes");
        anyhow::Ok(())
    })
    .await?;
    dynamic_client.catch_up().await
}
