//! Foos that are created at once: the times until the last Deployment and the last status.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{Patch, PatchParams};
use portreeve_testing::ControlPlane;
use tokio::task::JoinSet;

use crate::bench::Bench;
use crate::due;
use crate::foos::{self, ObjectWait, deployments, foos};
use crate::idle::kibibytes;
use crate::objects::{Created, post};
use crate::plan::Step;
use crate::quiesce::wait_until_idle;
use crate::resource_usage::{CpuTime, Memory};
use crate::rows::{Measure, Row, Sample, Subject};

/// The number of Foos that are created at a time.
const CREATED_AT_ONCE: usize = 16;
/// The time limit, several times as long as the slowest subject takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_mins(4);

pub(crate) async fn measure(bench: &Bench, step: &Step) -> Result<Vec<Sample>> {
    let plane = ControlPlane::start().await?;
    let client = due::client(&plane)?;
    foos::create_crds(&client).await?;
    let names = names(bench.options.count(Row::Foo1000), 1);
    let values = if step.subject.is_floor() {
        wait_until_idle(&plane, None).await?;
        let has_status = step.subject == Subject::FloorStatus;
        let floor = floor(&client, &names, foos::workers(bench), has_status);
        let end = took(&client, names.len(), has_status, floor).await?;
        let mut values = vec![(Measure::PostToDeployment, end.deployments)];
        values.extend(end.statuses.map(|statuses| (Measure::PostToStatus, statuses)));
        values
    } else {
        let controller = foos::start(bench, step.subject, &plane).await?;
        foos::has_caught_up(&controller, &client).await?;
        let pid = controller.pid();
        controller.guard(wait_until_idle(&plane, Some(pid))).await?;
        let before = CpuTime::of(pid)?;
        let took = took(&client, names.len(), true, create(&client, &names, None));
        let end = controller.guard(took).await?;
        // The CPU time includes the work after the last status, mostly events.
        controller.guard(wait_until_idle(&plane, Some(pid))).await?;
        let used = CpuTime::of(pid)?.since(&before);
        vec![
            (Measure::PostToDeployment, end.deployments),
            (
                Measure::PostToStatus,
                end.statuses.context("no watch of the statuses was started")?,
            ),
            (Measure::CpuTimeToEnd, used.as_secs_f64()),
            (Measure::Peak, kibibytes(Memory::of(pid)?.peak)),
        ]
    };
    let sample = |(measure, value)| Sample {
        row: Row::Foo1000,
        subject: step.subject,
        measure,
        value,
    };
    Ok(values.into_iter().map(sample).collect())
}

/// Returns names that are unique to a round.
pub(crate) fn names(count: usize, round: usize) -> Vec<String> {
    (0..count).map(|index| format!("foo-{round}-{index:05}")).collect()
}

/// The times in seconds from the first call until a watch received the last object.
pub(crate) struct End {
    deployments: f64,
    statuses: Option<f64>,
}

/// Runs `work` and returns the times until every Deployment exists and, if `has_status`, until
/// every status is written.
pub(crate) async fn took(
    client: &Client,
    count: usize,
    has_status: bool,
    work: impl Future<Output = Result<()>>,
) -> Result<End> {
    // The watches run in separate tasks, so that they and the work do not wait for each other.
    let mut watching = JoinSet::new();
    let made = ObjectWait::begin(&deployments(client), count, foos::is_owned).await?;
    let made = watching.spawn(made.reached(LIMIT)).id();
    if has_status {
        let settled = ObjectWait::begin(&foos(client), count, foos::is_settled).await?;
        watching.spawn(settled.reached(LIMIT));
    }
    let started = Instant::now();
    work.await?;
    let (mut deployments, mut statuses) = (None, None);
    while let Some(reached) = watching.join_next_with_id().await {
        let (watch, reached) = reached.context("a watch ended")?;
        let seconds = reached?.saturating_duration_since(started).as_secs_f64();
        let place = if watch == made { &mut deployments } else { &mut statuses };
        *place = Some(seconds);
    }
    let Some(deployments) = deployments else {
        bail!("no watch of the Deployments was started");
    };
    Ok(End { deployments, statuses })
}

/// Creates the Foos, several at a time, and sends each created Foo to `sender`.
pub(crate) async fn create(client: &Client, names: &[String], sender: Option<mpsc::Sender<Created>>) -> Result<()> {
    let api = foos(client);
    let objects = stream::iter(names.iter().map(|name| Ok(foos::foo(name))));
    objects
        .try_for_each_concurrent(CREATED_AT_ONCE, |object| {
            let (api, sender) = (api.clone(), sender.clone());
            async move {
                let created = Created::post(&api, object).await?;
                if let Some(mut sender) = sender {
                    sender
                        .send(created)
                        .await
                        .context("the receiver of created Foos is gone")?;
                }
                Ok(())
            }
        })
        .await
}

/// Creates a Deployment for each Foo as soon as the Foo is created, and writes the Foo's status if
/// `has_status`: the minimum that a controller has to write.
async fn floor(client: &Client, names: &[String], workers: u16, has_status: bool) -> Result<()> {
    // The channel holds all Foos, so their creation does not wait for the writes, as with a
    // controller.
    let (sender, receiver) = mpsc::channel(names.len());
    let writing = receiver
        .map(Ok)
        .try_for_each_concurrent(usize::from(workers), |foo| async move {
            post(&deployments(client), foos::deployment(&foo)).await?;
            if has_status {
                let status = Patch::Merge(foos::status(&foo));
                let written = foos(client)
                    .patch_status(&foo.name, &PatchParams::default(), &status)
                    .await;
                written.context("failed to write a status")?;
            }
            anyhow::Ok(())
        });
    futures::future::try_join(create(client, names, Some(sender)), writing).await?;
    Ok(())
}
