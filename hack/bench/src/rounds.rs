//! Ten rounds of Foos: the memory after the first and the tenth.

use std::time::Instant;

use anyhow::Result;
use portreeve_testing::ControlPlane;

use crate::bench::Bench;
use crate::burst::{create, names, took};
use crate::due;
use crate::foos;
use crate::idle::{kibibytes, settled};
use crate::plan::Step;
use crate::quiesce::wait_until_idle;
use crate::rows::{Measure, Row, Sample};

const ROUNDS: usize = 10;

/// Measures memory. Each round uses new names, so that a leak of data that is keyed by name shows.
pub(crate) async fn measure(bench: &Bench, step: &Step) -> Result<Vec<Sample>> {
    let plane = ControlPlane::start().await?;
    let client = due::client(&plane)?;
    foos::create_crds(&client).await?;
    let controller = foos::start(bench, step.subject, &plane).await?;
    foos::has_caught_up(&controller, &client).await?;
    let pid = controller.pid();
    let count = bench.options.count(Row::FooMemory);
    let mut resident = Vec::new();
    for round in 1..=ROUNDS {
        controller.guard(foos::remove_all(&client)).await?;
        controller.guard(wait_until_idle(&plane, Some(pid))).await?;
        let names = names(count, round);
        let took = took(&client, count, true, create(&client, &names, None));
        controller.guard(took).await?;
        if round == 1 || round == ROUNDS {
            let not_before = Instant::now() + bench.options.rest();
            let memory = controller.guard(settled(pid, not_before)).await?;
            resident.push(kibibytes(memory.resident));
        }
        bench.progress.log(format!("  round {round} of {ROUNDS} is done"));
    }
    let (Some(first), Some(tenth)) = (resident.first(), resident.last()) else {
        return Ok(Vec::new());
    };
    let values = [
        (Measure::ResidentFirst, *first),
        (Measure::ResidentTenth, *tenth),
        (Measure::TenthToFirst, tenth / first),
    ];
    let sample = |(measure, value)| Sample {
        row: Row::FooMemory,
        subject: step.subject,
        measure,
        value,
    };
    Ok(values.map(sample).into())
}
