//! Tests of collectors that are killed in the middle of a cascade.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use portreeve_testing::{Signal, eventually};

use super::{
    collector::Collector,
    environment::{CollectorCluster, CollectorEnvironment},
};
use crate::fixtures::{LIMIT, daemon::SHORT_ELECTION};

const LEASE: &str = "portreeve";
pub(super) const REPLICAS: [&str; 3] = ["replica-a", "replica-b", "replica-c"];

#[tokio::test]
async fn the_next_collector_completes_the_cascade_of_a_killed_one() -> Result<()> {
    let CollectorEnvironment { collector, mut cluster } = CollectorEnvironment::start("killed").await?;
    let before = cluster.delete_owners().await?;
    collector.daemon.process.signal(Signal::KILL)?;
    collector.daemon.process.wait(LIMIT).await?;
    let collector = cluster.collector().await?;
    let environment = CollectorEnvironment { collector, cluster };
    environment.verify().await?;
    environment.cluster.ensure_more_deletions_than(before)
}

#[tokio::test]
async fn a_standby_completes_the_cascade_of_a_killed_leader() -> Result<()> {
    let mut cluster = CollectorCluster::new("replicas").await?;
    let mut replicas = Vec::new();
    for name in REPLICAS {
        replicas.push(replica(&cluster, name, &[]).await?);
    }
    let leader = wait_for_leader(&cluster, None).await?;
    let before = cluster.delete_owners().await?;
    let index = REPLICAS.iter().position(|name| *name == leader);
    let killed = replicas.remove(index.context("no replica has the name of the leader")?);
    killed.daemon.process.signal(Signal::KILL)?;
    killed.daemon.process.wait(LIMIT).await?;

    let next = wait_for_leader(&cluster, Some(&leader)).await?;
    println!("{leader} was killed, and {next} took over");
    let collector = replicas.pop().context("no replica is left")?;
    let environment = CollectorEnvironment { collector, cluster };
    environment.verify().await?;
    for replica in &replicas {
        replica.ensure_nothing_forbidden().await?;
    }
    environment.cluster.ensure_more_deletions_than(before)
}

/// Starts a replica, leader or standby, and waits until it is ready.
pub(super) async fn replica(cluster: &CollectorCluster, name: &str, more: &[&str]) -> Result<Collector> {
    let args: Vec<&str> = SHORT_ELECTION.iter().chain(more).copied().collect();
    Collector::start_with(&cluster.plane, &cluster.kubeconfig, name, &args, &[("POD_NAME", name)]).await
}

/// Waits until a replica other than `former` leads, and returns its name.
pub(super) async fn wait_for_leader(cluster: &CollectorCluster, former: Option<&str>) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(cluster.plane.client()?, "kube-system");
    eventually(LIMIT, "a replica to lead", || async {
        let spec = leases.get_opt(LEASE).await?.and_then(|lease| lease.spec);
        let holder = spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let (pod, _) = holder.split_once('_').context("nobody leads")?;
        ensure!(former != Some(pod), "{pod} still leads");
        Ok(pod.to_owned())
    })
    .await
}
