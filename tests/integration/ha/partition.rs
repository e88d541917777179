//! A leader that loses its connection to the apiserver, in several ways.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use portreeve_testing::FaultProxy;

use super::{
    audit_tail::AuditTail,
    crash::ensure_no_steal,
    environment::{HaEnvironment, PODS, RunningReplicas, Timing},
    load::Load,
};
use crate::{
    audit::{report::Report, terms::Term},
    fixtures::{LIMIT, rounds::rounds},
};

/// A fault of the connection between a replica and the apiserver.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Connections break, and new ones fail.
    Cut,
    /// Nothing passes, and no error is reported.
    BlackHole,
    /// Requests pass, and responses do not.
    Mute,
    /// Every request takes longer than the lease.
    Slow,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Cut, Self::BlackHole, Self::Mute, Self::Slow];

    fn apply_to(self, proxy: &FaultProxy, environment: &HaEnvironment) {
        match self {
            Self::Cut => proxy.cut(),
            Self::BlackHole => proxy.black_hole(),
            Self::Mute => proxy.hold_responses(),
            Self::Slow => proxy.slow(2 * environment.timing.lease),
        }
    }
}

/// A proxy for each replica.
pub(crate) struct Network(BTreeMap<&'static str, FaultProxy>);

impl Network {
    pub(crate) async fn new(environment: &HaEnvironment) -> Result<Self> {
        let mut proxies = BTreeMap::new();
        for pod in PODS {
            proxies.insert(pod, FaultProxy::start(&environment.plane).await?);
        }
        Ok(Self(proxies))
    }

    pub(crate) fn of(&self, pod: &str) -> Result<&FaultProxy> {
        self.0.get(pod).with_context(|| format!("{pod} has no proxy"))
    }

    /// Starts all replicas, each behind its proxy.
    pub(crate) async fn start_replicas(&self, environment: &HaEnvironment) -> Result<RunningReplicas> {
        let mut running = RunningReplicas::new();
        for pod in PODS {
            self.join(environment, &mut running, pod).await?;
        }
        Ok(running)
    }

    /// Starts or restarts a replica behind its proxy.
    async fn join(&self, environment: &HaEnvironment, running: &mut RunningReplicas, pod: &'static str) -> Result<()> {
        let direct = environment.kubeconfig(pod).await?;
        let kubeconfig = self.of(pod)?.kubeconfig(&direct, pod)?;
        running.insert(pod, environment.replica_through(pod, &kubeconfig).await?);
        Ok(())
    }
}

#[tokio::test]
async fn a_leader_that_is_cut_off_stops_before_its_lease_ends_and_another_takes_over() -> Result<()> {
    let environment = HaEnvironment::with_timing("partition", Timing::EXPIRING).await?;
    let network = Network::new(&environment).await?;
    let mut running = network.start_replicas(&environment).await?;
    let load = Load::start(&environment.fixture, 20, 20).await?;
    let rounds = rounds(Fault::ALL.len())?;
    for fault in Fault::ALL.into_iter().cycle().take(rounds) {
        let (leader, daemon) = environment.take_leader(&mut running).await?;
        let tail = AuditTail::of(&environment)?;
        let proxy = network.of(leader)?;
        fault.apply_to(proxy, &environment);
        let status = daemon.process.wait(LIMIT).await?;
        ensure!(
            status.code() == Some(2),
            "{fault:?}: {status}{}",
            daemon.process.log_tail()
        );
        daemon.wait_for_line(&["lost the lease"]).await?;
        let next = environment.leader(&running).await?;
        tail.wait_for_write(&environment, next).await?;
        // Requests that the proxy held back for the exited process are lost, as when a host fails.
        proxy.cut();
        proxy.heal();
        network.join(&environment, &mut running, leader).await?;
    }
    let done = load.finish(&environment.fixture).await?;
    let report = environment.check()?;
    let (_, ended) = report.terms.split_last().context("no replica led")?;
    ensure!(report.is_clean() && done.failures == 0, "{done:?}: {report}");
    ensure!(report.terms.len() == rounds + 1, "{report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    ensure_written_in_time(&report, ended, environment.timing.lease)
}

/// Ensures that in these terms, no write came as long after a renewal as a lease lasts.
fn ensure_written_in_time(report: &Report, terms: &[Term], lease: Duration) -> Result<()> {
    let lease = SignedDuration::try_from(lease)?;
    let mut longest = terms.iter().map(|term| term.writes.longest_since_renewal);
    ensure!(longest.all(|longest| longest < lease), "{report}");
    Ok(())
}

#[tokio::test]
async fn the_leader_keeps_the_lease_on_a_slow_network() -> Result<()> {
    let environment = HaEnvironment::with_timing("slow", Timing::EXPIRING).await?;
    let network = Network::new(&environment).await?;
    let _replicas = network.start_replicas(&environment).await?;
    let load = Load::start(&environment.fixture, 5, 10).await?;
    for pod in PODS {
        network.of(pod)?.slow(Duration::from_millis(300));
    }
    for _ in 0..10 {
        environment.wait_for_renewal().await?;
    }
    for pod in PODS {
        network.of(pod)?.heal();
    }
    let done = load.finish(&environment.fixture).await?;
    let report = environment.check()?;
    ensure!(
        report.is_clean() && report.terms.len() == 1 && done.failures == 0,
        "{done:?}: {report}"
    );
    ensure_written_in_time(&report, &report.terms, environment.timing.lease)
}
