//! Many schedules of which none is due: memory and CPU time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use jiff::Zoned;
use jiff::tz::TimeZone;
use kube::api::ListParams;
use portreeve_testing::{ControlPlane, eventually};
use tokio::time::sleep;

use crate::bench::Bench;
use crate::controller::{Controller, Limits, Role, kind_of};
use crate::objects::{self, Kind};
use crate::plan::{REST, Step};
use crate::progress::length;
use crate::resource_usage::{CpuTime, Memory};
use crate::rows::{Measure, Row, Sample, Task};

/// Memory has settled when it stays within 1 % for this many samples, one a second.
const STABLE_SAMPLES: usize = 10;
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const SETTLE_LIMIT: Duration = Duration::from_mins(5);
const CRD_LIMIT: Duration = Duration::from_secs(30);
const PROGRESS_INTERVAL: Duration = Duration::from_mins(1);

/// Measures memory, and CPU time if there is a window. The schedules exist before the controller
/// starts, as after a restart.
pub(crate) async fn measure(bench: &Bench, step: &Step, row: Row, window: Option<Duration>) -> Result<Vec<Sample>> {
    let subject = step.subject;
    let plane = ControlPlane::start().await?;
    let client = plane.client()?;
    let start = || {
        Controller::start(
            Task::Schedules,
            subject,
            bench.daemon.as_ref(),
            &plane,
            Role::Alone(Limits::Default),
        )
    };
    let now = Zoned::now().with_time_zone(TimeZone::UTC);
    let (kind, count) = (kind_of(subject), bench.options.count(row));
    let schedule = |index| objects::far_from(&now, index);
    let schedules = objects::create(kind, &client, count, schedule, &bench.progress);
    if kind == Kind::CronTab {
        // A first process installs the CRD and writes a status for each CronTab. The measured
        // process starts after it, as after a restart.
        let first = start().await?;
        let (api, one) = (kind.api(&client), ListParams::default().limit(1));
        eventually(CRD_LIMIT, "CronTabs to be served", || api.list_metadata(&one)).await?;
        first.guard(schedules).await?;
        first.has_caught_up(&client, "first").await?;
    } else {
        schedules.await?;
    }
    let controller = start().await?;
    controller.has_caught_up(&client, "second").await?;
    drop(client);
    let caught_up = Instant::now();
    let pid = controller.pid();
    let mut samples = Vec::new();
    let mut add = |row, measure, value| {
        samples.push(Sample {
            row,
            subject,
            measure,
            value,
        });
    };
    if let Some(window) = window {
        controller.guard(settled(pid, caught_up)).await?;
        let used = controller.guard(used_in(bench, pid, window)).await?.as_secs_f64();
        add(Row::Quiet, Measure::CpuTime, used);
        add(Row::Quiet, Measure::CpuTimeAnHour, used * 3600.0 / window.as_secs_f64());
    }
    if bench.options.has(row) {
        let memory = controller.guard(settled(pid, caught_up + REST)).await?;
        add(row, Measure::Resident, kibibytes(memory.resident));
        add(row, Measure::Peak, kibibytes(memory.peak));
    }
    Ok(samples)
}

/// Waits until the memory of a process has settled, at least until `not_before`, and returns it.
pub(crate) async fn settled(pid: u32, not_before: Instant) -> Result<Memory> {
    let deadline = not_before.max(Instant::now()) + SETTLE_LIMIT;
    let mut samples_kib = Vec::new();
    loop {
        let memory = Memory::of(pid)?;
        samples_kib.push(memory.resident);
        let now = Instant::now();
        if now >= not_before && is_stable(&samples_kib) {
            return Ok(memory);
        }
        if now >= deadline {
            let latest = &samples_kib[samples_kib.len().saturating_sub(STABLE_SAMPLES)..];
            bail!("resident memory has not settled within {SETTLE_LIMIT:?}: {latest:?} KiB");
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns whether the last samples are within 1 % of each other.
fn is_stable(samples_kib: &[u64]) -> bool {
    let Some(latest) = samples_kib
        .len()
        .checked_sub(STABLE_SAMPLES)
        .and_then(|start| samples_kib.get(start..))
    else {
        return false;
    };
    match (latest.iter().min(), latest.iter().max()) {
        (Some(least), Some(most)) => (most - least) * 100 <= *most,
        _ => false,
    }
}

/// Returns the CPU time that a process uses in the window.
async fn used_in(bench: &Bench, pid: u32, window: Duration) -> Result<Duration> {
    bench
        .progress
        .log(format!("  measuring CPU time for {}", length(window)));
    let start = CpuTime::of(pid)?;
    let end = Instant::now() + window;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        sleep(left.min(PROGRESS_INTERVAL)).await;
        let used = CpuTime::of(pid)?.since(&start);
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(used);
        }
        let (used, left) = (used.as_secs_f64(), length(left));
        bench
            .progress
            .log(format!("  {used:.3} s of CPU time so far, {left} left"));
    }
}

pub(crate) fn kibibytes(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_settled_when_ten_samples_are_within_one_percent() {
        assert!(!is_stable(&[100; 9]));
        assert!(is_stable(&[100; 10]));
        assert!(!is_stable(&[&[98], &[100; 9][..]].concat()));
        assert!(is_stable(&[&[50, 99], &[100; 9][..]].concat()));
        assert!(!is_stable(&[]));
    }
}
