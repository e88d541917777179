//! The whole process without work: the time from its start to its first reconcile, its memory, and
//! the size of its binary.

use std::time::Instant;

use anyhow::{Context, Result};
use kube::api::DynamicObject;
use portreeve_testing::ControlPlane;
use tokio::task::JoinSet;

use crate::bench::Bench;
use crate::controller::{Controller, Role, START_LIMIT};
use crate::due;
use crate::foos::{self, ObjectWait, deployments, foos};
use crate::idle::{kibibytes, settled};
use crate::objects::post;
use crate::plan::Step;
use crate::quiesce::wait_until_idle;
use crate::rows::{Measure, Row, Sample, Subject, Task};

/// Measures the time until a Foo that exists before the start gets its Deployment; for
/// kube-controller-manager, until a Deployment gets its `ReplicaSet`.
pub(crate) async fn measure(bench: &Bench, step: &Step) -> Result<Vec<Sample>> {
    let subject = step.subject;
    let plane = ControlPlane::start().await?;
    let client = due::client(&plane)?;
    foos::create_crds(&client).await?;
    let dependents = if subject == Subject::Peer {
        post(&deployments(&client), foos::unowned_deployment("waiting")).await?;
        foos::api(&client, "apps", "v1", "ReplicaSet")
    } else {
        post(&foos(&client), foos::foo("waiting")).await?;
        deployments(&client)
    };
    if subject.is_built() {
        // The subject may have to be built first.
        foos::peers(bench).await?;
    }
    wait_until_idle(&plane, None).await?;
    let made = ObjectWait::begin(&dependents, 1, is_any).await?;
    let mut watching = JoinSet::new();
    watching.spawn(made.reached(START_LIMIT));
    let started = Instant::now();
    let controller = if subject.is_built() {
        foos::start(bench, subject, &plane).await?
    } else {
        Controller::spawn(Task::Everything, subject, bench.daemon.as_ref(), &plane, Role::Usual)?
    };
    let reached = async { watching.join_next().await.context("no watch was started")?? };
    let took = controller.guard(reached).await?.saturating_duration_since(started);
    let memory = controller
        .guard(settled(controller.pid(), started + bench.options.rest()))
        .await?;
    let values = [
        (Measure::StartToWork, took.as_secs_f64()),
        (Measure::Resident, kibibytes(memory.resident)),
        (Measure::Peak, kibibytes(memory.peak)),
        (Measure::Binary, kibibytes(controller.binary_kibibytes()?)),
    ];
    let sample = |(measure, value)| Sample {
        row: Row::Shell,
        subject,
        measure,
        value,
    };
    Ok(values.map(sample).into())
}

fn is_any(_object: &DynamicObject) -> bool {
    true
}
