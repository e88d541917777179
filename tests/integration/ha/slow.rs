//! Replicas whose requests take long because of the network or the apiserver.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portreeve_testing::FaultProxy;

use super::environment::{HaEnvironment, PODS, Timing};
use crate::fixtures::{admin::OPEN, daemon::Daemon};

/// Three candidates that reach the apiserver through one slow proxy.
struct SlowReplicas {
    replicas: Vec<Daemon>,
    _proxy: FaultProxy,
    environment: HaEnvironment,
}

impl SlowReplicas {
    async fn start(name: &str, timing: Timing, slow: impl FnOnce(&FaultProxy)) -> Result<Self> {
        let environment = HaEnvironment::with_timing(name, timing).await?;
        let proxy = FaultProxy::start(&environment.plane).await?;
        slow(&proxy);
        let flags = environment.flags();
        let args: Vec<&str> = flags.iter().map(String::as_str).chain([OPEN]).collect();
        let mut replicas = Vec::new();
        for pod in PODS {
            let kubeconfig = proxy.kubeconfig(&environment.kubeconfig(pod).await?, pod)?;
            replicas.push(Daemon::start_with(&environment.plane, &kubeconfig, pod, &args, &[("POD_NAME", pod)]).await?);
        }
        Ok(Self {
            environment,
            _proxy: proxy,
            replicas,
        })
    }

    fn log_tails(&self) -> String {
        let tails = self.replicas.iter().map(|replica| replica.process.log_tail());
        tails.collect()
    }

    /// Waits until a replica leads and has renewed the Lease `renewals` times. Checks that the
    /// Lease never had another holder and that no replica has lost it.
    async fn check_one_leader(&self, renewals: u32) -> Result<()> {
        let environment = &self.environment;
        let leader = environment
            .wait_for_holder("a replica to acquire the Lease", |holder| !holder.is_empty())
            .await
            .with_context(|| self.log_tails())?;
        for _ in 0..renewals {
            environment.wait_for_renewal().await?;
        }
        let spec = environment
            .lease()
            .await?
            .and_then(|lease| lease.spec)
            .unwrap_or_default();
        ensure!(
            environment.holder().await? == leader,
            "{leader} lost the Lease: {spec:?}"
        );
        ensure!(spec.lease_transitions == Some(0), "{spec:?}");
        for replica in &self.replicas {
            ensure!(
                replica.process.exit_status().is_none(),
                "{}",
                replica.process.log_tail()
            );
        }
        Ok(())
    }
}

/// A request may take 7 s. It takes 4 s, and 8 s together with the TLS handshake before it.
#[tokio::test]
async fn one_replica_leads_when_a_dial_and_a_request_exceed_the_timeout() -> Result<()> {
    let timing = Timing {
        lease: Duration::from_secs(20),
        renew_deadline: Duration::from_secs(14),
        retry_period: Duration::from_secs(1),
    };
    let delay = Duration::from_secs(2);
    let replicas = SlowReplicas::start("farther", timing, |proxy| proxy.slow_wire(delay)).await?;
    replicas.check_one_leader(4).await
}
