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
    stage::{PODS, Stage},
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
struct Skewed(SignedDuration);

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        Timestamp::now() + self.0
    }

    fn steps(&self) -> BoxStream<'static, ()> {
        stream::pending().boxed()
    }
}

/// A replica inside this process, which no flag of the product could give a wrong clock. Its identity begins with the host's name.
struct Deluded {
    stop: Shutdown,
    task: JoinSet<Result<(), Error>>,
}

impl Deluded {
    /// Starts it with a pod's rights and waits until it is ready.
    async fn start(stage: &Stage, pod: &str, skew: SignedDuration) -> Result<Self> {
        let kubeconfig = format!("--kubeconfig={}", stage.kubeconfig(pod).await?.display());
        for _ in 0..PORT_ATTEMPTS {
            let admin = Admin { port: free_port()? };
            let port = format!("--secure-port={}", admin.port);
            let common = ["portreeve", &*kubeconfig, &*port, "--bind-address=127.0.0.1", OPEN].map(str::to_owned);
            let config = Config::parse(common.into_iter().chain(stage.flags()), CONTROLLERS)?;
            let stop = Shutdown::new();
            let mut task = JoinSet::new();
            task.spawn(portreeve::run(
                config,
                CONTROLLERS,
                Arc::new(Skewed(skew)),
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
    let stage = Stage::new(name).await?;
    let (wrong, right) = (PODS[0], PODS[1]);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();

    let deluded = Deluded::start(&stage, wrong, skew).await?;
    stage
        .wait_for_holder("the wrong clock to lead", |holder| holder == host)
        .await?;
    stage.scene.settled_foo("one", 1).await?;
    let daemon = stage.replica(right).await?;
    for _ in 0..RENEWALS {
        stage.wait_for_renewal().await?;
        ensure!(stage.holder().await? == host, "it was stolen from the wrong clock");
    }
    deluded.stop().await?;
    stage
        .wait_for_holder("the right clock to lead", |holder| holder == right)
        .await?;
    stage.scene.settled_foo("two", 1).await?;

    let deluded = Deluded::start(&stage, wrong, skew).await?;
    for _ in 0..RENEWALS {
        stage.wait_for_renewal().await?;
        ensure!(stage.holder().await? == right, "the wrong clock has stolen it");
    }
    daemon.process.signal(Signal::KILL)?;
    stage
        .wait_for_holder("the wrong clock to lead again", |holder| holder == host)
        .await?;
    stage.scene.settled_foo("three", 1).await?;
    deluded.stop().await?;

    let mut court = stage.court();
    for (_, pod) in court.replicas.iter_mut().filter(|(_, pod)| pod == wrong) {
        pod.clone_from(&host);
    }
    let report = stage.judge_by(&court)?;
    ensure!(report.is_clean() && report.terms.len() == 3, "{report}");
    ensure!(report.terms.iter().all(|term| term.writes.count > 0), "{report}");
    ensure_no_steal(&report, stage.timing.lease)
}

#[tokio::test]
async fn a_clock_that_is_ahead_steals_nothing_and_loses_nothing() -> Result<()> {
    disagree("ahead", SKEW).await
}

#[tokio::test]
async fn a_clock_that_is_behind_steals_nothing_and_loses_nothing() -> Result<()> {
    disagree("behind", -SKEW).await
}
