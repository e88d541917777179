//! The deletion of an owner: the time until its dependents are deleted or orphaned.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use portreeve_testing::ControlPlane;
use serde_json::json;
use tokio::task::JoinSet;

use crate::bench::Bench;
use crate::completion::{CascadeCompletion, Fate};
use crate::controller::{Controller, Limits, Role};
use crate::due;
use crate::family::{self, Family, has_caught_up};
use crate::idle::kibibytes;
use crate::objects::Created;
use crate::plan::Step;
use crate::quiesce::wait_until_idle;
use crate::resource_usage::{CpuTime, Memory};
use crate::rows::{Measure, Row, Sample, Task};

/// The number of dependents that each subject works on at a time with lifted limits, which is
/// Kubernetes' default.
pub(crate) const CONCURRENCY: u16 = 20;
/// The time limit, four times as long as kube-controller-manager takes for 1,000 dependents with
/// its default limits.
const LIMIT: Duration = Duration::from_mins(4);

pub(crate) async fn measure(bench: &Bench, step: &Step, row: Row) -> Result<Vec<Sample>> {
    let plane = ControlPlane::start().await?;
    let client = due::client(&plane)?;
    let is_blocking = row == Row::Foreground3000;
    let family = Family::create(&client, bench.options.count(row), is_blocking, &bench.progress).await?;
    let run = CascadeRun { client, family, row };
    let concurrency = bench.options.concurrency.unwrap_or(CONCURRENCY);
    let values = if step.subject.is_floor() {
        wait_until_idle(&plane, None).await?;
        let took = run.took(run.floor(concurrency)).await?;
        vec![(Measure::DeleteToEnd, took.as_secs_f64())]
    } else {
        let limits = match row {
            Row::CascadeDefault => Limits::Default,
            _ => Limits::Lifted(concurrency),
        };
        let role = Role::Alone(limits);
        let controller = Controller::start(Task::Garbage, step.subject, bench.daemon.as_ref(), &plane, role).await?;
        has_caught_up(&controller, &run.client).await?;
        controller
            .guard(wait_until_idle(&plane, Some(controller.pid())))
            .await?;
        let before = CpuTime::of(controller.pid())?;
        let took = controller.guard(run.took(async { Ok(()) })).await?;
        let used = CpuTime::of(controller.pid())?.since(&before);
        let memory = Memory::of(controller.pid())?;
        vec![
            (Measure::DeleteToEnd, took.as_secs_f64()),
            (Measure::CpuTimeToEnd, used.as_secs_f64()),
            (Measure::Peak, kibibytes(memory.peak)),
        ]
    };
    let sample = |(measure, value)| Sample {
        row,
        subject: step.subject,
        measure,
        value,
    };
    Ok(values.into_iter().map(sample).collect())
}

struct CascadeRun {
    client: Client,
    family: Family,
    row: Row,
}

impl CascadeRun {
    fn fate(&self) -> Fate {
        match self.row {
            Row::Orphan3000 => Fate::Orphaned,
            _ => Fate::Collected,
        }
    }

    /// Deletes the owner, runs `work`, and returns the time from the deletion until the owner is
    /// gone and every dependent is deleted or orphaned.
    async fn took(&self, work: impl Future<Output = Result<()>>) -> Result<Duration> {
        let completion = CascadeCompletion::watch(&self.client, &self.family, self.fate()).await?;
        // The watch runs in a separate task, so that it and the work do not wait for each other.
        let mut watching = JoinSet::new();
        watching.spawn(completion.reached(LIMIT));
        let policy = match self.row {
            Row::Foreground3000 => DeleteParams::foreground(),
            Row::Orphan3000 => DeleteParams::orphan(),
            _ => DeleteParams::background(),
        };
        let owners = family::api(&self.client);
        let started = Instant::now();
        let deleted = owners.delete(&self.family.owner.name, &policy).await;
        deleted.context("failed to delete the owner")?;
        work.await?;
        let Some(reached) = watching.join_next().await else {
            bail!("no watch of the family was started");
        };
        let reached = reached.context("failed to watch the family")??;
        Ok(reached.saturating_duration_since(started))
    }

    /// Sends the requests that a collector has to send, from a client that knows all dependents.
    async fn floor(&self, concurrency: u16) -> Result<()> {
        let dependents = stream::iter(&self.family.dependents).map(Ok);
        dependents
            .try_for_each_concurrent(usize::from(concurrency), |dependent| self.write(dependent))
            .await
            .context("failed to write what a collector writes")?;
        // After background deletion, the owner is gone and has no finalizer to remove.
        if matches!(self.row, Row::Foreground3000 | Row::Orphan3000) {
            let patch = Patch::Merge(json!({"metadata": {"uid": self.family.owner.uid, "finalizers": null}}));
            let owners = family::api(&self.client);
            let patched = owners
                .patch(&self.family.owner.name, &PatchParams::default(), &patch)
                .await;
            patched.context("failed to remove the owner's finalizer")?;
        }
        Ok(())
    }

    async fn write(&self, dependent: &Created) -> kube::Result<()> {
        let dependents = family::api(&self.client);
        let Created { name, uid, version } = dependent;
        match self.fate() {
            Fate::Collected => {
                let preconditions = Preconditions {
                    resource_version: Some(version.clone()),
                    uid: Some(uid.clone()),
                };
                let delete = DeleteParams::background().preconditions(preconditions);
                dependents.delete(name, &delete).await?;
            }
            Fate::Orphaned => {
                let metadata = json!({"uid": uid, "resourceVersion": version, "ownerReferences": null});
                let patch = Patch::Merge(json!({"metadata": metadata}));
                dependents.patch(name, &PatchParams::default(), &patch).await?;
            }
        }
        Ok(())
    }
}
