//! The judge and a daemon that takes part in no election.

use anyhow::{Result, ensure};

use crate::{
    load::Load,
    stage::{PODS, Stage},
    support::daemon::Daemon,
    tail::Tail,
};

#[tokio::test]
async fn a_replica_that_writes_without_the_lease_is_caught() -> Result<()> {
    let stage = Stage::new("caught").await?;
    let [outlaw, ..] = PODS;
    let kubeconfig = stage.kubeconfig(outlaw).await?;
    let flags = ["--leader-elect=false", "--controllers=foo"];
    let daemon = Daemon::start_as(&stage.plane, &kubeconfig, outlaw, &flags).await?;
    let tail = Tail::of(&stage)?;
    let load = Load::start(&stage.scene, 5, 20).await?;
    tail.wait_until_acts(&stage, outlaw).await?;
    load.finish(&stage.scene).await?;
    drop(daemon);
    let report = stage.judge()?;
    ensure!(report.terms.is_empty() && report.undecided.is_empty(), "{report}");
    let written = report.replicas[outlaw].written;
    ensure!(written > 0 && report.violations.len() == written, "{report}");
    Ok(())
}
