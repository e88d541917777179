//! The audit checker on a daemon that runs without leader election.

use anyhow::{Result, ensure};

use super::{
    audit_tail::AuditTail,
    environment::{HaEnvironment, PODS},
    load::Load,
};
use crate::fixtures::daemon::Daemon;

#[tokio::test]
async fn the_checker_reports_a_replica_that_writes_without_the_lease() -> Result<()> {
    let environment = HaEnvironment::new("caught").await?;
    let [pod, ..] = PODS;
    let kubeconfig = environment.kubeconfig(pod).await?;
    let flags = ["--leader-elect=false", "--controllers=foo"];
    let daemon = Daemon::start_as(&environment.plane, &kubeconfig, pod, &flags).await?;
    let tail = AuditTail::of(&environment)?;
    let load = Load::start(&environment.fixture, 5, 20).await?;
    tail.wait_for_write(&environment, pod).await?;
    load.finish(&environment.fixture).await?;
    drop(daemon);
    let report = environment.check()?;
    ensure!(report.terms.is_empty() && report.undecided.is_empty(), "{report}");
    let written = report.replicas[pod].written;
    ensure!(written > 0 && report.violations.len() == written, "{report}");
    Ok(())
}
