//! The executable under faults, round after round: nothing grows.

use anyhow::{Context, Result, ensure};
use portreeve_testing::{BodyFault, CannedResponse, ControlPlane, Fault, FaultProxy, Matcher, Repeat, eventually};

use super::{
    scenario::{ALL, Account},
    work::Work,
};
use crate::{
    clock::OffsetClock,
    support::{SETTLED, daemon::Daemon},
};

/// A watch that goes silent is given up long before a round is.
const FLAGS: [&str; 3] = [ALL, "--install-crds", "--watch-idle-timeout=30s"];
/// How many rounds are played until everything that is made once is made.
const WARM_UP: usize = 3;
/// And then so many.
const ROUNDS: usize = 4;
/// Far less than the requests that fail in a round. A connection more may be open at one time than at another.
const SLACK: f64 = 10.0;
/// What the allocator may have kept more of. A round's answers are some megabytes.
const BYTES: f64 = 6.0 * 1024.0 * 1024.0;

/// What a daemon holds, besides a task and a file for each connection.
#[derive(Debug)]
struct ResourceUsage {
    tasks: f64,
    files: f64,
    memory: f64,
}

/// Breaks every connection, so that only those are open that are needed, and takes stock.
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

/// A wave in which so many requests meet each fault.
async fn round(work: &mut Work, proxy: &FaultProxy) -> Result<()> {
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
        fault.wait_for_applied(times, SETTLED).await?;
    }
    proxy.heal();
    work.verify_churn().await
}

#[tokio::test]
async fn nothing_grows_in_bad_weather() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let Account { kubeconfig, .. } = Account::of(&plane, &proxy, &[]).await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "weathered", &FLAGS).await?;
    daemon.admin.wait_until_ready().await?;
    let mut work = Work::start(&plane, &OffsetClock::new()).await?;
    work.churn().await?;
    work.verify_churn().await?;
    for number in 0..WARM_UP {
        round(&mut work, &proxy)
            .await
            .with_context(|| format!("round {number}"))?;
    }
    let before = measure_usage(&daemon, &proxy).await?;
    for number in WARM_UP..WARM_UP + ROUNDS {
        round(&mut work, &proxy)
            .await
            .with_context(|| format!("round {number}"))?;
    }
    eventually(SETTLED, "it to hold no more than before", || async {
        let after = measure_usage(&daemon, &proxy).await?;
        println!("before {before:?}, after {after:?}");
        let is_more = |after: f64, before: f64, slack| after > before + slack;
        ensure!(
            !is_more(after.tasks, before.tasks, SLACK)
                && !is_more(after.files, before.files, SLACK)
                && !is_more(after.memory, before.memory, BYTES),
            "{before:?} before, {after:?} after"
        );
        anyhow::Ok(())
    })
    .await
}
