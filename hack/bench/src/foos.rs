//! Foos that are created at once: the times until the last Deployment and the last status. A Foo
//! that exists before the start: the time until the first reconcile, memory, and the size of the
//! binary.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt, TryStreamExt, stream};
use kube::Api;
use kube::api::{DynamicObject, WatchParams};

use crate::controller::{Controller, START_LIMIT};
use crate::objects::{CONCURRENT_CREATES, Created, DEPLOYMENT, FOO, REPLICA_SET, api};
use crate::objects::{create_sample_definitions, object, post, write_status};
use crate::run::Run;
use crate::statistics::{Unit, Value};
use crate::tables::Subject;
use crate::watch::Watch;

/// The time limit, several times as long as the slowest subject takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(4);

/// Measures the times of one round.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    create_sample_definitions(&run.client).await?;
    let burst = Burst::of(run);
    if run.step.subject.is_floor() {
        run.idle(None).await?;
        return burst.times(burst.reconcile(run.concurrency())).await;
    }
    let controller = start(run).await?;
    controller.idle(run).await?;
    let before = controller.cpu_time()?;
    let mut values = controller.guard(burst.times(burst.create(None))).await?;
    // The CPU time includes the work after the last status, mostly events.
    controller.idle(run).await?;
    values.push(Unit::Seconds.of("CPU time of it", controller.cpu_time()?.since(&before)));
    Ok(values)
}

/// Measures the time until a Foo that exists before the start gets its Deployment; for
/// kube-controller-manager, until a Deployment gets its `ReplicaSet`. A controller for Foos lists
/// all Deployments first, because one of them may already have the name that the Foo gives.
pub(crate) async fn measure_start(run: &Run<'_>) -> Result<Vec<Value>> {
    create_sample_definitions(&run.client).await?;
    let is_peer = run.step.subject == Subject::Peer;
    let (waiting, kind, dependents) = if is_peer {
        ("unowned-deployment", DEPLOYMENT, REPLICA_SET)
    } else {
        ("foo", FOO, DEPLOYMENT)
    };
    post(&api(&run.client, kind), object(waiting, &[("name", &"waiting")])).await?;
    run.idle(None).await?;
    let made = Watch::start(&api(&run.client, dependents), WatchParams::default()).await?;
    let is_dependent = if is_peer { |_: &DynamicObject| true } else { is_owned };
    let made = made.until_all(START_LIMIT, 1, is_dependent);
    let started = Instant::now();
    let controller = Controller::spawn(run, None)?;
    let took = controller.guard(made.last(started)).await?;
    Ok(vec![
        Unit::Seconds.of("start to first reconcile", took),
        controller.at_rest(run, started).await?,
        Unit::Kibibytes.of("size of the binary", controller.binary()?),
    ])
}

/// Starts a controller and waits until it has reconciled a new Foo.
async fn start(run: &Run<'_>) -> Result<Controller> {
    let controller = Controller::spawn(run, None)?;
    let api = api(&run.client, FOO);
    let settled = Watch::start(&api, WatchParams::default()).await?;
    let settled = settled.until_all(START_LIMIT, 1, is_settled);
    post(&api, object("foo", &[("name", &"probe")])).await?;
    controller.guard(settled.last(Instant::now())).await?;
    Ok(controller)
}

/// Returns whether a Deployment is owned by a Foo.
fn is_owned(deployment: &DynamicObject) -> bool {
    let mut owners = deployment.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "Foo")
}

/// Returns whether the status of a Foo is up to date with its spec.
fn is_settled(foo: &DynamicObject) -> bool {
    let observed = foo.data["status"]["observedGeneration"].as_i64();
    observed.is_some() && observed == foo.metadata.generation
}

/// The Foos and their Deployments.
struct Burst {
    foos: Api<DynamicObject>,
    deployments: Api<DynamicObject>,
    names: Vec<String>,
}

impl Burst {
    fn of(run: &Run<'_>) -> Self {
        let names = (0..run.count()).map(|index| format!("foo-{index:05}"));
        Self {
            foos: api(&run.client, FOO),
            deployments: api(&run.client, DEPLOYMENT),
            names: names.collect(),
        }
    }

    /// Runs `work` and returns the times until watches have shown every Deployment and status.
    async fn times(&self, work: impl Future<Output = Result<()>>) -> Result<Vec<Value>> {
        let count = self.names.len();
        let made = Watch::start(&self.deployments, WatchParams::default()).await?;
        let made = made.until_all(LIMIT, count, is_owned);
        let settled = Watch::start(&self.foos, WatchParams::default()).await?;
        let settled = settled.until_all(LIMIT, count, is_settled);
        let started = Instant::now();
        work.await?;
        Ok(vec![
            Unit::Seconds.of("first POST to last Deployment", made.last(started).await?),
            Unit::Seconds.of("first POST to last status", settled.last(started).await?),
        ])
    }

    /// Creates the Foos, several at a time, and sends each created Foo to `sender`.
    async fn create(&self, sender: Option<mpsc::Sender<Created>>) -> Result<()> {
        let names = stream::iter(&self.names).map(Ok);
        let created = names.try_for_each_concurrent(CONCURRENT_CREATES, |name| {
            let sender = sender.clone();
            async move {
                let created = post(&self.foos, object("foo", &[("name", &name)])).await?;
                if let Some(mut sender) = sender {
                    let sent = sender.send(created).await;
                    sent.context("the receiver of created Foos is gone")?;
                }
                Ok(())
            }
        });
        created.await
    }

    /// Creates the Foos, and a Deployment for each as soon as it is created, and writes the Foo's
    /// status: the minimum that a controller has to write.
    async fn reconcile(&self, workers: u16) -> Result<()> {
        // The channel holds all Foos, so their creation does not wait for the writes, as with a
        // controller.
        let (sender, created) = mpsc::channel(self.names.len());
        let write = |Created { name, uid, version }: Created| async move {
            let deployment = object("foo-deployment", &[("name", &name), ("uid", &uid)]);
            post(&self.deployments, deployment).await?;
            let status = object("foo-status", &[("uid", &uid), ("version", &version)]);
            write_status(&self.foos, &name, &status).await
        };
        let writing = created.map(Ok).try_for_each_concurrent(usize::from(workers), write);
        futures::future::try_join(self.create(Some(sender)), writing).await?;
        Ok(())
    }
}
