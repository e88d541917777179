//! Waits until the servers and a controller are idle. The work of an apiserver after its start, or
//! after thousands of writes, would slow down the subject that is measured first, which is always
//! the bare client.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use portreeve_testing::ControlPlane;
use tokio::time::sleep;

use crate::resource_usage::CpuTime;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The CPU time that all processes together may use between two samples and count as idle: several
/// times that of leases, bookmarks and health checks.
const IDLE_CPU_TIME: Duration = Duration::from_millis(100);
/// The number of consecutive idle samples that are required.
const IDLE_SAMPLES: usize = 2;
const LIMIT: Duration = Duration::from_mins(1);

/// Waits until the servers, and the controller if there is one, are idle.
pub(crate) async fn wait_until_idle(plane: &ControlPlane, controller: Option<u32>) -> Result<()> {
    let mut processes = vec![plane.apiserver().pid()?, plane.etcd().pid()?];
    processes.extend(controller);
    let cpu_times = || {
        processes
            .iter()
            .map(|pid| CpuTime::of(*pid))
            .collect::<Result<Vec<_>>>()
    };
    let deadline = Instant::now() + LIMIT;
    let (mut before, mut idle_samples) = (cpu_times()?, 0);
    while idle_samples < IDLE_SAMPLES {
        sleep(POLL_INTERVAL).await;
        let now = cpu_times()?;
        let used: Duration = now.iter().zip(&before).map(|(now, before)| now.since(before)).sum();
        idle_samples = if used <= IDLE_CPU_TIME { idle_samples + 1 } else { 0 };
        if idle_samples < IDLE_SAMPLES && Instant::now() >= deadline {
            bail!("the control plane is not idle after {LIMIT:?}: {used:?} of CPU time in the last second");
        }
        before = now;
    }
    Ok(())
}
