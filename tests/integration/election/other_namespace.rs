//! Leases of the same name in two namespaces, with which two daemons would lead at once.

use std::path::Path;

use portreeve_testing::ControlPlane;

use super::*;
use crate::fixtures::daemon::PROGRAM;

/// Starts a daemon as somebody does by hand, and returns its log once it has ended with 1.
async fn refusal(plane: &ControlPlane) -> Result<String> {
    let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
    let process = plane.spawn("by-hand", Path::new(PROGRAM), &[&*kubeconfig, "--secure-port=0"], &[])?;
    let status = process.wait(LIMIT).await?;
    let log = process.log_tail();
    ensure!(status.code() == Some(1), "{status}{log}");
    Ok(log)
}

#[tokio::test]
async fn a_daemon_does_not_lead_beside_one_with_a_lease_in_another_namespace() -> Result<()> {
    let environment = ElectionEnvironment::new().await?;
    let system = environment.plane.namespace("portreeve-system").await?;
    let namespace = format!("--leader-elect-resource-namespace={}", system.name());
    let deployed = environment.replica("deployed", &[&namespace]).await?;
    let leases: Api<Lease> = system.api();
    let holder = eventually(LIMIT, "the deployed daemon to lead", || async {
        let lease = leases.get("portreeve").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        anyhow::Ok(holder.context("nobody holds it")?)
    })
    .await?;
    let log = refusal(&environment.plane).await?;
    let lease = format!("{}/portreeve", system.name());
    for word in [
        &*holder,
        &lease,
        "--leader-elect-ignore-others",
        "--leader-elect-resource-namespace",
    ] {
        ensure!(log.contains(word), "{word} is not in {log}");
    }
    // A replica of the deployed one, and somebody who insists.
    let replica = environment.replica("replica", &[&namespace]).await?;
    let insists = environment
        .replica("insists", &["--leader-elect-ignore-others"])
        .await?;
    environment.next_holder("portreeve", "").await?;
    // A Lease that was released has no leader.
    for daemon in [replica, insists, deployed] {
        daemon.admin.wait_until_ready().await?;
        daemon.process.signal(Signal::TERM)?;
        ensure!(daemon.process.wait(LIMIT).await?.code() == Some(0));
    }
    let by_hand = environment.replica("by-hand", &[]).await?;
    environment.next_holder("portreeve", "").await?;
    by_hand.admin.wait_until_ready().await?;
    by_hand.process.signal(Signal::TERM)?;
    ensure!(by_hand.process.wait(LIMIT).await?.code() == Some(0));
    Ok(())
}
