//! Replicas whose clocks disagree.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{self, BoxStream, StreamExt};
use jiff::{SignedDuration, Timestamp};
use portreeve::{CONTROLLERS, Config, Error};
use portreeve_reconcile::{Clock, Shutdown};
use portreeve_testing::{Signal, free_port};
use tokio::{task::JoinSet, time::timeout};

use crate::{
    crash::ensure_no_steal,
    fixtures::{HaEnvironment, PODS},
    support::{
        LIMIT,
        admin::{Admin, OPEN},
    },
};

/// How far the clocks are apart: more than a lease.
const SKEW: SignedDuration = SignedDuration::from_secs(20);
/// How many times the leader renews while the other has time to make a mistake: for longer than a lease.
const RENEWALS: usize = 8;
/// How many times another port is tried when somebody takes one between our look and the daemon's.
const PORT_ATTEMPTS: usize = 5;

/// A clock that is wrong, always by as much.
struct SkewedClock(SignedDuration);

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        Timestamp::now() + self.0
    }

    fn steps(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }
}

/// A replica inside this process, which no flag of the product could give a wrong clock. Its identity begins with the host's name.
struct SkewedReplica {
    stop: Shutdown,
    task: JoinSet<Result<(), Error>>,
}

impl SkewedReplica {
    /// Starts it with a pod's rights and waits until it is ready.
    async fn start(environment: &HaEnvironment, pod: &str, skew: SignedDuration) -> Result<Self> {
        let kubeconfig = format!("--kubeconfig={}", environment.kubeconfig(pod).await?.display());
        for _ in 0..PORT_ATTEMPTS {
            let admin = Admin { port: free_port()? };
            let port = format!("--secure-port={}", admin.port);
            let common = ["portreeve", &*kubeconfig, &*port, "--bind-address=127.0.0.1", OPEN].map(str::to_owned);
            let config = Config::parse(common.into_iter().chain(environment.flags()), CONTROLLERS)?;
            let stop = Shutdown::new();
            let mut task = JoinSet::new();
            task.spawn(portreeve::run(
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
        bail!("found no port in {PORT_ATTEMPTS} attempts");
    }

    /// Asks it to stop, and waits for its end.
    async fn stop(mut self) -> Result<()> {
        self.stop.request();
        let end = timeout(LIMIT, self.task.join_next()).await.context("its end")?;
        end.context("it was running")??.context("it ended with an error")
    }
}

/// One replica is right about the time and the other is not; each leads for a while, and each takes over from the other.
async fn disagree(name: &str, skew: SignedDuration) -> Result<()> {
    let environment = HaEnvironment::new(name).await?;
    let (wrong, right) = (PODS[0], PODS[1]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();

    let deluded = SkewedReplica::start(&environment, wrong, skew).await?;
    environment
        .wait_for_holder("the wrong clock to lead", |holder| holder == host)
        .await?;
    environment.fixture.settled_foo("one", 1).await?;
    let daemon = environment.replica(right).await?;
    for _ in 0..RENEWALS {
        environment.wait_for_renewal().await?;
        ensure!(
            environment.holder().await? == host,
            "it was stolen from the wrong clock"
        );
    }
    deluded.stop().await?;
    environment
        .wait_for_holder("the right clock to lead", |holder| holder == right)
        .await?;
    environment.fixture.settled_foo("two", 1).await?;

    let deluded = SkewedReplica::start(&environment, wrong, skew).await?;
    for _ in 0..RENEWALS {
        environment.wait_for_renewal().await?;
        ensure!(environment.holder().await? == right, "the wrong clock has stolen it");
    }
    daemon.process.signal(Signal::KILL)?;
    environment
        .wait_for_holder("the wrong clock to lead again", |holder| holder == host)
        .await?;
    environment.fixture.settled_foo("three", 1).await?;
    deluded.stop().await?;

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
async fn a_clock_that_is_ahead_steals_nothing_and_loses_nothing() -> Result<()> {
    disagree("ahead", SKEW).await
}

#[tokio::test]
async fn a_clock_that_is_behind_steals_nothing_and_loses_nothing() -> Result<()> {
    disagree("behind", -SKEW).await
}
