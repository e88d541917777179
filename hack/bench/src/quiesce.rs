//! Waits until the servers and a controller are idle. The work of an apiserver after its start, or
//! after thousands of writes, would slow down the subject that is measured first, which is always
//! the bare client.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use portreeve_testing::ControlPlane;
use tokio::time::sleep;

use crate::resource_usage::CpuTime;

const LOOK: Duration = Duration::from_secs(1);
/// The CPU time that all processes together may use between two samples: several times that of
/// leases, bookmarks and health checks.
const LITTLE: Duration = Duration::from_millis(100);
/// The number of consecutive idle samples.
const STILL: usize = 2;
const LIMIT: Duration = Duration::from_mins(1);

/// Waits until the servers, and the controller if there is one, are idle.
pub(crate) async fn wait_until_idle(plane: &ControlPlane, controller: Option<u32>) -> Result<()> {
    let mut processes = vec![plane.apiserver().pid()?, plane.etcd().pid()?];
    processes.extend(controller);
    let look = || {
        processes
            .iter()
            .map(|pid| CpuTime::of(*pid))
            .collect::<Result<Vec<_>>>()
    };
    let deadline = Instant::now() + LIMIT;
    let (mut before, mut still) = (look()?, 0);
    while still < STILL {
        sleep(LOOK).await;
        let now = look()?;
        let used: Duration = now.iter().zip(&before).map(|(now, before)| now.since(before)).sum();
        still = if used <= LITTLE { still + 1 } else { 0 };
        if still < STILL && Instant::now() >= deadline {
            bail!("the control plane is not idle after {LIMIT:?}: {used:?} of CPU time in the last second");
        }
        before = now;
    }
    Ok(())
}
