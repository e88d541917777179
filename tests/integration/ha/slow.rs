//! Replicas whose requests take long because of the network or the apiserver.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::FaultProxy;

use super::environment::{HaEnvironment, PODS, Timing};

/// A request may take 7 s. It takes 4 s, and 8 s together with the TLS handshake before it. The
/// three candidates share one proxy.
#[tokio::test]
async fn one_replica_leads_when_a_dial_and_a_request_exceed_the_timeout() -> Result<()> {
    let timing = Timing {
        lease: Duration::from_secs(20),
        renew_deadline: Duration::from_secs(14),
        retry_period: Duration::from_secs(1),
    };
    let environment = HaEnvironment::with_timing("farther", timing).await?;
    let proxy = FaultProxy::start(&environment.plane).await?;
    proxy.slow_wire(Duration::from_secs(2));
    let mut replicas = Vec::new();
    for pod in PODS {
        let kubeconfig = proxy.kubeconfig(&environment.kubeconfig(pod).await?, pod)?;
        replicas.push(environment.unready_replica(pod, &kubeconfig).await?);
    }
    let log_tails = || {
        let tails = replicas.iter().map(|replica| replica.process.log_tail());
        tails.collect::<String>()
    };
    let leader = environment
        .wait_for_holder("a replica to acquire the Lease", |holder| !holder.is_empty())
        .await
        .with_context(log_tails)?;
    for _ in 0..4 {
        environment.wait_for_renewal().await?;
    }
    let spec = environment.lease().await?.and_then(|lease| lease.spec);
    let spec = spec.unwrap_or_default();
    ensure!(
        environment.holder().await? == leader,
        "{leader} lost the Lease: {spec:?}"
    );
    ensure!(spec.lease_transitions == Some(0), "{spec:?}");
    let is_running = replicas.iter().all(|replica| replica.process.exit_status().is_none());
    ensure!(is_running, "{}", log_tails());
    Ok(())
}
