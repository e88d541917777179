//! A collector that is killed in the middle of a cascade.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use portreeve_testing::{ControlPlane, Signal, eventually};

use super::{
    collector::{CONTROLLER, Collector},
    environment::{CollectorCluster, CollectorEnvironment},
};
use crate::{
    audit::{AuditChecker, AuditLog, GuardedLease, policy},
    fixtures::{LIMIT, daemon::EXPIRING_LEASE, rbac::printed_rules},
};

pub(super) const LEASE: &str = "portreeve";
pub(super) const REPLICAS: [&str; 3] = ["replica-a", "replica-b", "replica-c"];

/// Creates an account for each replica, and returns their kubeconfigs through the proxy and an
/// audit checker that knows the accounts.
async fn accounts(cluster: &CollectorCluster) -> Result<(Vec<PathBuf>, AuditChecker)> {
    let system = cluster.plane.namespace("portreeve-system").await?;
    let rules = printed_rules(&[CONTROLLER])?;
    let (mut kubeconfigs, mut replicas) = (Vec::new(), Vec::new());
    for name in REPLICAS {
        let direct = cluster
            .plane
            .service_account_kubeconfig(system.name(), name, rules.clone());
        kubeconfigs.push(cluster.proxy.kubeconfig(&direct.await?, name)?);
        let user = format!("system:serviceaccount:{}:{name}", system.name());
        replicas.push((user, name.to_owned()));
    }
    let lease = GuardedLease {
        namespace: "kube-system".to_owned(),
        name: LEASE.to_owned(),
        components: Vec::new(),
    };
    let leases = vec![lease];
    Ok((kubeconfigs, AuditChecker { replicas, leases }))
}

#[tokio::test]
async fn a_standby_completes_the_cascade_of_a_killed_leader() -> Result<()> {
    let plane = ControlPlane::builder()
        .audit_policy(policy::WRITES_WITH_RESPONSES)
        .pooled()
        .await?;
    let mut cluster = CollectorCluster::on(plane, "replicas").await?;
    let (kubeconfigs, audit_checker) = accounts(&cluster).await?;
    let mut replicas = Vec::new();
    for (name, kubeconfig) in REPLICAS.iter().zip(kubeconfigs) {
        cluster.kubeconfig = kubeconfig;
        replicas.push(replica(&cluster, name, &[]).await?);
    }
    let leader = wait_for_leader(&cluster, None).await?;
    let before = cluster.delete_owners().await?;
    let index = REPLICAS.iter().position(|name| *name == leader);
    let killed = replicas.remove(index.context("no replica has the name of the leader")?);
    killed.daemon.process.signal(Signal::KILL)?;
    killed.daemon.process.wait(LIMIT).await?;

    let next = wait_for_leader(&cluster, Some(&leader)).await?;
    let collector = replicas.pop().context("no replica is left")?;
    let environment = CollectorEnvironment { collector, cluster };
    environment.verify().await?;
    for replica in &replicas {
        replica.ensure_nothing_forbidden().await?;
    }
    let log = AuditLog::of(&environment.cluster.plane)?;
    let report = audit_checker.check(&log.lines_since(0)?)?;
    let written = |pod: &str| report.replicas.get(pod).map_or(0, |counts| counts.written);
    ensure!(written(&leader) > 0 && written(&next) > 0, "{report}");
    ensure!(report.violations.is_empty(), "{report}");
    environment.cluster.ensure_more_deletions_than(before)
}

/// Starts a replica, leader or standby, and waits until it is ready.
pub(super) async fn replica(cluster: &CollectorCluster, name: &str, more: &[&str]) -> Result<Collector> {
    let args: Vec<&str> = EXPIRING_LEASE.iter().chain(more).copied().collect();
    Collector::start_with(&cluster.plane, &cluster.kubeconfig, name, &args, &[("POD_NAME", name)]).await
}

/// Waits until a replica other than `former` leads, and returns its name.
pub(super) async fn wait_for_leader(cluster: &CollectorCluster, former: Option<&str>) -> Result<String> {
    leader_of(&cluster.plane, former).await
}

/// Does the same as [`wait_for_leader`] without a cluster.
pub(super) async fn leader_of(plane: &ControlPlane, former: Option<&str>) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(plane.client()?, "kube-system");
    eventually(LIMIT, "a replica to lead", || async {
        let spec = leases.get_opt(LEASE).await?.and_then(|lease| lease.spec);
        let holder = spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let (pod, _) = holder.split_once('_').context("nobody leads")?;
        ensure!(former != Some(pod), "{pod} still leads");
        Ok(pod.to_owned())
    })
    .await
}
