//! Objects without owners: the memory of a garbage collector.

use std::time::Instant;

use anyhow::Result;
use portreeve_testing::ControlPlane;

use crate::bench::Bench;
use crate::controller::{Controller, Limits, Role};
use crate::family::{create_load, has_caught_up};
use crate::idle::{kibibytes, settled};
use crate::plan::{REST, Step};
use crate::rows::{Measure, Row, Sample, Task};

/// Measures the memory of a garbage collector. The objects exist before it starts, as after a
/// restart.
pub(crate) async fn measure(bench: &Bench, step: &Step, row: Row) -> Result<Vec<Sample>> {
    let plane = ControlPlane::start().await?;
    let client = plane.client()?;
    create_load(&client, bench.options.count(row), bytes(row), &bench.progress).await?;
    let role = Role::Alone(Limits::Default);
    let controller = Controller::start(Task::Garbage, step.subject, bench.daemon.as_ref(), &plane, role).await?;
    has_caught_up(&controller, &client).await?;
    drop(client);
    let memory = controller
        .guard(settled(controller.pid(), Instant::now() + REST))
        .await?;
    let values = [(Measure::Resident, memory.resident), (Measure::Peak, memory.peak)];
    let sample = |(measure, value)| Sample {
        row,
        subject: step.subject,
        measure,
        value: kibibytes(value),
    };
    Ok(values.map(sample).into())
}

/// Returns the size of each object's content in bytes.
pub(crate) fn bytes(row: Row) -> usize {
    match row {
        Row::Memory5000Large => 20_000,
        _ => 1000,
    }
}
