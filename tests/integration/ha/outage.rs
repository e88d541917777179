//! Restarts of the servers.

use anyhow::{Result, ensure};

use super::{
    audit_tail::AuditTail,
    environment::{HaEnvironment, PODS, RunningReplicas, Timing},
    load::Load,
};
use crate::faults::servers::ServerFault;

/// Restarts a server in much less time than the renew deadline, and ensures that the leader keeps
/// the Lease.
async fn restart_server(name: &str, fault: ServerFault) -> Result<()> {
    let environment = HaEnvironment::with_timing(name, Timing::LONG).await?;
    let running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 5, 10).await?;
    let leader = environment.leader(&running).await?;
    AuditTail::of(&environment)?
        .wait_for_write(&environment, leader)
        .await?;
    fault.inject(&environment.plane).await?;
    let tail = AuditTail::of(&environment)?;
    // The leader continues to write, and renews the Lease before the renew deadline.
    tail.wait_for_write(&environment, leader).await?;
    environment.wait_for_renewal().await?;
    for (pod, daemon) in &running {
        ensure!(
            daemon.process.exit_status().is_none(),
            "{pod} has ended{}",
            daemon.process.log_tail()
        );
        daemon.admin.wait_until_ready().await?;
    }
    let done = load.finish(&environment.fixture).await?;
    let report = environment.check()?;
    println!(
        "{name}: {} changes of Foos, {} failed changes",
        done.changes, done.failures
    );
    ensure!(report.is_clean() && report.terms.len() == 1, "{report}");
    Ok(())
}

#[tokio::test]
async fn the_leader_keeps_the_lease_when_the_apiserver_restarts() -> Result<()> {
    restart_server("apiserver-restart", ServerFault::ApiserverKilled).await
}

#[tokio::test]
async fn the_leader_keeps_the_lease_when_etcd_restarts() -> Result<()> {
    restart_server("etcd-restart", ServerFault::EtcdKilled).await
}
