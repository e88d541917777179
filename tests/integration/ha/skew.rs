//! Replicas with different clocks.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{self, BoxStream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use portreeve_cli::CONTROLLERS;
use portreeve_daemon::{Config, Error};
use portreeve_reconcile::{Clock, Shutdown};
use portreeve_testing::{Signal, free_port};
use tokio::{task::JoinSet, time::timeout};

use super::{
    crash::ensure_no_steal,
    environment::{HaEnvironment, PODS, Timing},
};
use crate::fixtures::{
    LIMIT,
    admin::{Admin, OPEN},
};

/// The difference between the clocks: longer than a lease.
const SKEW: SignedDuration = SignedDuration::from_secs(20);
/// The number of renewals during which the other replica must not acquire the Lease. They take
/// about as long as a lease.
const RENEWALS: usize = 12;
/// How many ports a replica tries: another process can take a port between the check and the
/// daemon's start.
const PORT_ATTEMPTS: usize = 5;

/// The system clock with a constant error.
struct SkewedClock(SignedDuration);

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::now() + self.0
    }

    fn steps(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }
}

/// A replica inside this process, because no flag of the daemon sets a wrong clock. Its identity
/// starts with the host's name.
struct SkewedReplica {
    stop: Shutdown,
    task: JoinSet<Result<(), Error>>,
}

impl SkewedReplica {
    /// Starts a replica with a pod's rights and waits until it is ready.
    async fn start(environment: &HaEnvironment, pod: &str, skew: SignedDuration) -> Result<Self> {
        let kubeconfig = format!("--kubeconfig={}", environment.kubeconfig(pod).await?.display());
        for _ in 0..PORT_ATTEMPTS {
            let admin = Admin { port: free_port()? };
            let port = format!("--secure-port={}", admin.port);
            let common = ["portreeve", &*kubeconfig, &*port, "--bind-address=127.0.0.1", OPEN].map(str::to_owned);
            let config = Config::parse(common.into_iter().chain(environment.flags()), CONTROLLERS)?;
            let stop = Shutdown::new();
            let mut task = JoinSet::new();
            task.spawn(portreeve_daemon::run(
                config,
                CONTROLLERS,
                Arc::new(SkewedClock(skew)),
                stop.clone(),
            ));
            let mut replica = Self { stop, task };
            tokio::select! {
                ready = admin.wait_until_ready() => return ready.map(|()| replica),
                end = replica.task.join_next() => match end {
                    Some(Ok(Err(Error::Serving(_)))) => {}
                    end => bail!("the replica ended: {end:?}"),
                },
            }
        }
        bail!("found no free port in {PORT_ATTEMPTS} attempts");
    }

    /// Requests the shutdown and waits until the replica has exited.
    async fn stop(mut self) -> Result<()> {
        self.stop.request();
        let end = timeout(LIMIT, self.task.join_next())
            .await
            .context("the replica did not exit in time")?;
        end.context("the replica was not running")??
            .context("the replica exited with an error")
    }
}

/// Runs a replica with a right clock and one with a wrong clock. Each leads for a while, and each
/// takes over from the other.
async fn run_with_skew(name: &str, skew: SignedDuration) -> Result<()> {
    let environment = HaEnvironment::with_timing(name, Timing::EXPIRING).await?;
    let (wrong, right) = (PODS[0], PODS[1]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();

    let skewed = SkewedReplica::start(&environment, wrong, skew).await?;
    environment
        .wait_for_holder("the wrong clock to lead", |holder| holder == host)
        .await?;
    environment.fixture.ready_foo("one", 1).await?;
    let daemon = environment.replica(right).await?;
    for _ in 0..RENEWALS {
        environment.wait_for_renewal().await?;
        ensure!(
            environment.holder().await? == host,
            "another replica took the Lease from the one with the wrong clock"
        );
    }
    skewed.stop().await?;
    environment
        .wait_for_holder("the right clock to lead", |holder| holder == right)
        .await?;
    environment.fixture.ready_foo("two", 1).await?;

    let skewed = SkewedReplica::start(&environment, wrong, skew).await?;
    for _ in 0..RENEWALS {
        environment.wait_for_renewal().await?;
        ensure!(
            environment.holder().await? == right,
            "the replica with the wrong clock took the Lease"
        );
    }
    daemon.process.signal(Signal::KILL)?;
    environment
        .wait_for_holder("the wrong clock to lead again", |holder| holder == host)
        .await?;
    environment.fixture.ready_foo("three", 1).await?;
    skewed.stop().await?;

    let mut audit_checker = environment.audit_checker();
    for (_, pod) in audit_checker.replicas.iter_mut().filter(|(_, pod)| pod == wrong) {
        pod.clone_from(&host);
    }
    let report = environment.check_with(&audit_checker)?;
    ensure!(report.is_clean() && report.terms.len() == 3, "{report}");
    ensure!(report.terms.iter().all(|term| term.writes.count > 0), "{report}");
    ensure_no_steal(&report, environment.timing.lease)
}

#[tokio::test]
async fn a_replica_with_a_clock_ahead_takes_and_loses_no_valid_lease() -> Result<()> {
    run_with_skew("ahead", SKEW).await
}

#[tokio::test]
async fn a_replica_with_a_clock_behind_takes_and_loses_no_valid_lease() -> Result<()> {
    run_with_skew("behind", -SKEW).await
}
