//! A restart of the apiserver.

use anyhow::{Result, ensure};

use super::{
    audit_tail::AuditTail,
    environment::{HaEnvironment, PODS, RunningReplicas},
    load::Load,
};
use crate::faults::servers::ServerFault;

/// The restart takes much less time than the renew deadline.
#[tokio::test]
async fn the_leader_keeps_the_lease_when_the_apiserver_restarts() -> Result<()> {
    let environment = HaEnvironment::new("apiserver-restart").await?;
    let running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 5, 10).await?;
    let leader = environment.leader(&running).await?;
    AuditTail::of(&environment)?
        .wait_for_write(&environment, leader)
        .await?;
    ServerFault::ApiserverKilled.inject(&environment.plane).await?;
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
    load.finish(&environment.fixture).await?;
    let report = environment.check()?;
    ensure!(report.is_clean() && report.terms.len() == 1, "{report}");
    Ok(())
}
