//! Foos that are created at once: how long until the last Deployment exists, and until the last status says so.

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

/// How many Foos are created at a time.
const CREATED_AT_ONCE: usize = 16;
/// Several times what the slowest takes, on a machine that is busy with something else.
pub(crate) const LIMIT: Duration = Duration::from_mins(4);

pub(crate) async fn measure(bench: &Bench, step: &Step) -> Result<Vec<Sample>> {
    let plane = ControlPlane::start().await?;
    let client = due::client(&plane)?;
    foos::define(&client).await?;
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
        // What comes after the last status, events above all, is part of the work.
        controller.guard(wait_until_idle(&plane, Some(pid))).await?;
        let used = CpuTime::of(pid)?.since(&before);
        vec![
            (Measure::PostToDeployment, end.deployments),
            (
                Measure::PostToStatus,
                end.statuses.context("nobody watched the statuses")?,
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

/// Names that no other round has.
pub(crate) fn names(count: usize, round: usize) -> Vec<String> {
    (0..count).map(|index| format!("foo-{round}-{index:05}")).collect()
}

/// Seconds from the first call to what a watch has told of.
pub(crate) struct End {
    deployments: f64,
    statuses: Option<f64>,
}

/// Does some work, and tells how long it took until every Deployment exists, and every status when somebody writes them.
pub(crate) async fn took(
    client: &Client,
    count: usize,
    has_status: bool,
    work: impl Future<Output = Result<()>>,
) -> Result<End> {
    // Tasks of their own: what is measured does not wait for the watches to be read, nor the watches for it.
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
        bail!("nobody watched the Deployments");
    };
    Ok(End { deployments, statuses })
}

/// Creates the Foos, some at a time, and tells of each to whoever wants to know.
pub(crate) async fn create(client: &Client, names: &[String], tell: Option<mpsc::Sender<Created>>) -> Result<()> {
    let api = foos(client);
    let objects = stream::iter(names.iter().map(|name| Ok(foos::foo(name))));
    objects
        .try_for_each_concurrent(CREATED_AT_ONCE, |object| {
            let (api, tell) = (api.clone(), tell.clone());
            async move {
                let created = Created::post(&api, object).await?;
                if let Some(mut tell) = tell {
                    tell.send(created).await.context("nobody listens")?;
                }
                Ok(())
            }
        })
        .await
}

/// What a controller has to write, by a client that is told of each Foo as soon as it is created.
async fn floor(client: &Client, names: &[String], workers: u16, has_status: bool) -> Result<()> {
    // As many as there are: whoever creates does not wait for whoever writes, as with a controller.
    let (tell, told) = mpsc::channel(names.len());
    let writing = told
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
    futures::future::try_join(create(client, names, Some(tell)), writing).await?;
    Ok(())
}
