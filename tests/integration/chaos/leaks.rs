//! The executable under repeated faults: its resource usage does not grow. Only `make chaos` runs
//! this, because it takes minutes.

use anyhow::{Context, Result, ensure};
use portreeve_testing::{BodyFault, CannedResponse, Fault, FaultProxy, Matcher, Repeat, eventually};

use super::{scenario::Account, work::Work};
use crate::fixtures::{
    LIMIT,
    clock::OffsetClock,
    daemon::{ALL_CONTROLLERS, Daemon, PROMPT_NAMESPACES},
    definitions::plane_with_definitions,
};

/// The flags of the daemon. With this idle timeout, the informers open more watches in a round than
/// its faults affect.
const FLAGS: [&str; 2] = ["--install-crds", "--watch-idle-timeout=3s"];
/// The number of rounds before the first measurement, in which the daemon makes its one-time
/// allocations.
const WARM_UP: usize = 3;
/// The number of rounds between the two measurements.
const ROUNDS: usize = 4;
/// The tolerance for tasks and files, far less than the failed requests of a round. The number of
/// open connections varies a little.
const SLACK: f64 = 10.0;
/// The tolerance for memory that the allocator keeps. The responses of a round have several
/// megabytes.
const MEMORY_SLACK: f64 = 6.0 * 1024.0 * 1024.0;

/// The resource usage of a daemon, without the task and the file of each connection.
#[derive(Debug)]
struct ResourceUsage {
    tasks: f64,
    files: f64,
    memory: f64,
}

/// Measures the resource usage after a reset of all connections, so that only needed ones are open.
async fn measure_usage(daemon: &Daemon, proxy: &FaultProxy) -> Result<ResourceUsage> {
    proxy.reset();
    daemon.admin.wait_until_ready().await?;
    let metrics = daemon.admin.metrics().await?;
    let connections = u32::try_from(proxy.connections()).map(f64::from)?;
    Ok(ResourceUsage {
        tasks: metrics.sum("portreeve_tasks", &[]) - connections,
        files: metrics.sum("process_open_fds", &[]) - connections,
        memory: metrics.sum("process_resident_memory_bytes", &[]),
    })
}

/// Runs a wave in which each fault affects a fixed number of requests.
async fn run_round(work: &mut Work, proxy: &FaultProxy) -> Result<()> {
    let watch = |fault, times| proxy.fault(Matcher::watches(), fault, Repeat::Next(times));
    let faults = [
        (watch(Fault::Body(BodyFault::CutAt(0)), 20), 20),
        (watch(Fault::Body(BodyFault::CutAt(1_500)), 10), 10),
        (watch(Fault::Body(BodyFault::StallAt(700)), 10), 10),
        (watch(Fault::Respond(CannedResponse::expired()), 10), 10),
        (proxy.fault(Matcher::writes(), Fault::DropResponse, Repeat::Next(5)), 5),
        (proxy.fault(Matcher::writes(), Fault::Cut, Repeat::Next(5)), 5),
        (
            proxy.respond(Matcher::any(), CannedResponse::unavailable(), Repeat::Next(10)),
            10,
        ),
    ];
    proxy.reset();
    work.churn().await?;
    for (fault, times) in faults {
        fault.wait_for_applied(times, LIMIT).await?;
    }
    proxy.heal();
    work.verify().await
}

#[tokio::test]
async fn resource_usage_does_not_grow_under_faults() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let Account { kubeconfig, .. } = Account::of(&plane, &proxy, &[]).await?;
    let flags = [&[ALL_CONTROLLERS.as_str()], &PROMPT_NAMESPACES[..], &FLAGS[..]].concat();
    let daemon = Daemon::start_as(&plane, &kubeconfig, "under-faults", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let mut work = Work::start(&plane, &OffsetClock::new()).await?;
    work.churn().await?;
    work.verify().await?;
    for number in 0..WARM_UP {
        run_round(&mut work, &proxy)
            .await
            .with_context(|| format!("round {number}"))?;
    }
    let before = measure_usage(&daemon, &proxy).await?;
    for number in WARM_UP..WARM_UP + ROUNDS {
        run_round(&mut work, &proxy)
            .await
            .with_context(|| format!("round {number}"))?;
    }
    eventually(LIMIT, "resource usage to return to its former level", || async {
        let after = measure_usage(&daemon, &proxy).await?;
        println!("before {before:?}, after {after:?}");
        let is_more = |after: f64, before: f64, slack| after > before + slack;
        ensure!(
            !is_more(after.tasks, before.tasks, SLACK)
                && !is_more(after.files, before.files, SLACK)
                && !is_more(after.memory, before.memory, MEMORY_SLACK),
            "{before:?} before, {after:?} after"
        );
        anyhow::Ok(())
    })
    .await
}
