//! Foos that are created at once: the times until the last Deployment and the last status, and the
//! memory after several rounds. Foos that exist before the start: the time until the first
//! reconcile, memory, and the size of the binary.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt, TryStreamExt, stream};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, WatchParams};
use portreeve_testing::eventually;
use serde_json::Value as Json;

use crate::controller::{Controller, START_LIMIT};
use crate::objects::{CONCURRENT_CREATES, Created, DEPLOYMENT, FOO, REPLICA_SET, api, create_all};
use crate::objects::{create_sample_definitions, object, post, write_status};
use crate::run::{Run, log};
use crate::statistics::{Unit, Value};
use crate::tables::Subject;
use crate::watch::Watch;

/// The number of rounds in which memory is measured.
const ROUNDS: usize = 10;
/// The time limit, several times as long as the slowest subject takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(4);
/// How long the removal of thousands of objects may take.
const REMOVAL_LIMIT: Duration = Duration::from_mins(2);

/// Measures the times of one round.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    create_sample_definitions(&run.client).await?;
    let foos = Round::of(run, 1);
    if run.step.subject.is_floor() {
        run.idle(None).await?;
        let has_status = run.step.subject == Subject::FloorStatus;
        let work = foos.reconcile(run.concurrency(), has_status);
        return foos.times(has_status, work).await;
    }
    let controller = start(run).await?;
    controller.idle(run).await?;
    let before = controller.cpu_time()?;
    let mut values = controller.guard(foos.times(true, foos.create(None))).await?;
    // The CPU time includes the work after the last status, mostly events.
    controller.idle(run).await?;
    values.push(Unit::Seconds.of("CPU time of it", controller.cpu_time()?.since(&before)));
    values.push(Unit::Kibibytes.of("peak resident memory", controller.memory()?.peak));
    Ok(values)
}

/// Measures the memory after the first and the last round. Each round uses new names, so that a
/// leak of data that is keyed by name shows.
pub(crate) async fn measure_rounds(run: &Run<'_>) -> Result<Vec<Value>> {
    create_sample_definitions(&run.client).await?;
    let controller = start(run).await?;
    let mut resident = Vec::new();
    for round in 1..=ROUNDS {
        let foos = Round::of(run, round);
        controller.guard(foos.remove_all()).await?;
        controller.idle(run).await?;
        controller.guard(foos.times(true, foos.create(None))).await?;
        if round == 1 || round == ROUNDS {
            resident.push(controller.at_rest(run, Instant::now()).await?.resident);
        }
        log(format!("  round {round} of {ROUNDS} is done"));
    }
    let [first, tenth] = resident[..] else {
        return Ok(Vec::new());
    };
    Ok(vec![
        Unit::Kibibytes.of("resident memory after one round", first),
        Unit::Kibibytes.of("resident memory after ten rounds", tenth),
        Unit::Ratio.of("after ten to after one", tenth / first),
    ])
}

/// Measures the time until a Foo that exists before the start gets its Deployment; for
/// kube-controller-manager, until a Deployment gets its `ReplicaSet`. A controller for Foos lists
/// all Deployments first, because one of them may already have the name that the Foo gives.
pub(crate) async fn measure_start(run: &Run<'_>) -> Result<Vec<Value>> {
    create_sample_definitions(&run.client).await?;
    create_all(&api(&run.client, DEPLOYMENT), (0..run.count()).map(application)).await?;
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
    let mut values = vec![Unit::Seconds.of("start to first reconcile", took)];
    values.extend(controller.at_rest(run, started).await?.values());
    if run.count() == 0 {
        values.push(Unit::Kibibytes.of("size of the binary", controller.binary()?));
    }
    Ok(values)
}

fn application(index: usize) -> Json {
    let (name, team) = (format!("application-{index:05}"), format!("team-{:03}", index % 100));
    object("application", &[("name", &name), ("team", &team)])
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

/// The Foos of a round and their Deployments.
struct Round {
    foos: Api<DynamicObject>,
    deployments: Api<DynamicObject>,
    names: Vec<String>,
}

impl Round {
    fn of(run: &Run<'_>, round: usize) -> Self {
        let names = (0..run.count()).map(|index| format!("foo-{round}-{index:05}"));
        Self {
            foos: api(&run.client, FOO),
            deployments: api(&run.client, DEPLOYMENT),
            names: names.collect(),
        }
    }

    /// Runs `work` and returns the times until a watch has shown every Deployment and, if
    /// `has_status`, every status.
    async fn times(&self, has_status: bool, work: impl Future<Output = Result<()>>) -> Result<Vec<Value>> {
        let count = self.names.len();
        let made = Watch::start(&self.deployments, WatchParams::default()).await?;
        let mut watches = vec![("first POST to last Deployment", made.until_all(LIMIT, count, is_owned))];
        if has_status {
            let settled = Watch::start(&self.foos, WatchParams::default()).await?;
            watches.push(("first POST to last status", settled.until_all(LIMIT, count, is_settled)));
        }
        let started = Instant::now();
        work.await?;
        let mut values = Vec::new();
        for (measure, watch) in watches {
            values.push(Unit::Seconds.of(measure, watch.last(started).await?));
        }
        Ok(values)
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
    /// status if `has_status`: the minimum that a controller has to write.
    async fn reconcile(&self, workers: u16, has_status: bool) -> Result<()> {
        // The channel holds all Foos, so their creation does not wait for the writes, as with a
        // controller.
        let (sender, created) = mpsc::channel(self.names.len());
        let write = |Created { name, uid, version }: Created| async move {
            let deployment = object("foo-deployment", &[("name", &name), ("uid", &uid)]);
            post(&self.deployments, deployment).await?;
            if has_status {
                let status = object("foo-status", &[("uid", &uid), ("version", &version)]);
                write_status(&self.foos, &name, &status).await?;
            }
            anyhow::Ok(())
        };
        let writing = created.map(Ok).try_for_each_concurrent(usize::from(workers), write);
        futures::future::try_join(self.create(Some(sender)), writing).await?;
        Ok(())
    }

    /// Removes every Foo and every Deployment, because no garbage collector runs.
    async fn remove_all(&self) -> Result<()> {
        for api in [&self.foos, &self.deployments] {
            let (policy, all) = (DeleteParams::default(), ListParams::default());
            let deleted = api.delete_collection(&policy, &all).await;
            deleted.context("failed to delete a collection")?;
            let gone = || async {
                let left = api.list_metadata(&ListParams::default().limit(1)).await?;
                ensure!(left.items.is_empty(), "some objects are left");
                Ok(())
            };
            eventually(REMOVAL_LIMIT, "all objects to be gone", gone).await?;
        }
        Ok(())
    }
}
