//! Servers that go away and come back.

use anyhow::{Result, ensure};
use portreeve_testing::Server;

use crate::{
    load::Load,
    stage::{Cast, PODS, Stage, Timing},
    tail::Tail,
};

/// A server is away for a while that is short against the renew deadline. Nobody loses the Lease, and nobody takes it.
async fn survive(name: &str, server: impl Fn(&Stage) -> &Server) -> Result<()> {
    let stage = Stage::timed(name, Timing::LONG).await?;
    let cast: Cast = stage.cast(&PODS).await?;
    let load = Load::start(&stage.scene, 5, 10).await?;
    let leader = stage.leader(&cast).await?;
    Tail::of(&stage)?.wait_until_acts(&stage, leader).await?;
    let server = server(&stage);
    server.kill().await?;
    server.start().await?;
    let tail = Tail::of(&stage)?;
    // Leading on, it works on; and a renewal has to come by then, or else it would be over.
    tail.wait_until_acts(&stage, leader).await?;
    stage.wait_for_renewal().await?;
    for (pod, daemon) in &cast {
        ensure!(
            daemon.process.exit_status().is_none(),
            "{pod} has ended{}",
            daemon.process.log_tail()
        );
        daemon.admin.wait_until_ready().await?;
    }
    let done = load.finish(&stage.scene).await?;
    let report = stage.judge()?;
    println!(
        "{name}: {} changes of Foos, {} that failed meanwhile",
        done.changes, done.failures
    );
    ensure!(report.is_clean() && report.terms.len() == 1, "{report}");
    Ok(())
}

#[tokio::test]
async fn a_restart_of_the_apiserver_costs_nobody_the_lease() -> Result<()> {
    survive("apiserver-restart", |stage| stage.plane.apiserver()).await
}

#[tokio::test]
async fn a_restart_of_etcd_costs_nobody_the_lease() -> Result<()> {
    survive("etcd-restart", |stage| stage.plane.etcd()).await
}
