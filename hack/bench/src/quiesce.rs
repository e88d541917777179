//! The servers and a controller with nothing left to do: what an apiserver does after its start, or after thousands of writes, is in the
//! way of whoever is measured first, and that is always the bare client.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use portreeve_testing::ControlPlane;
use tokio::time::sleep;

use crate::resource_usage::CpuTime;

const LOOK: Duration = Duration::from_secs(1);
/// The CPU time that all of them together may take between two looks: several times what they take for leases, bookmarks and health.
const LITTLE: Duration = Duration::from_millis(100);
/// So many looks in a row have to find little.
const STILL: usize = 2;
const LIMIT: Duration = Duration::from_mins(1);

/// Waits until the servers, and the controller when there is one, work no more.
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
            bail!("the control plane still works after {LIMIT:?}: {used:?} of CPU time in the last second");
        }
        before = now;
    }
    Ok(())
}
