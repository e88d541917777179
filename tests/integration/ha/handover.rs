//! A leader that gets SIGTERM.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use portreeve_testing::{Signal, eventually};

use super::{
    audit_tail::AuditTail,
    environment::{HaEnvironment, PODS, RunningReplicas, SUCCESSORS, Timing},
    load::Load,
};
use crate::{
    audit::report::Report,
    fixtures::{LIMIT, daemon::Daemon, rounds::rounds},
};

/// The maximum pause in the writes during a rolling update, in which no replica waits for a lease
/// to expire.
const GAP_LIMIT: Duration = Timing::LONG.lease;

/// Waits until a replica that got SIGTERM has exited, and ensures that it exited with code 0 and
/// did not lose the Lease.
async fn wait_for_clean_exit(daemon: &Daemon) -> Result<()> {
    let status = daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(0), "{status}{}", daemon.process.log_tail());
    let log = daemon.log()?;
    ensure!(!log.contains("lost the lease"), "{log}");
    Ok(())
}

/// Waits until every write has its response, and ensures that the leader sent it and that every
/// term ended with a release.
async fn orderly_report(environment: &HaEnvironment) -> Result<Report> {
    let report = eventually(LIMIT, "the responses to all writes", || async {
        let report = environment.check()?;
        let unknown = report.replicas.values().map(|tally| tally.unknown).sum::<usize>();
        ensure!(unknown == 0, "{report}");
        anyhow::Ok(report)
    })
    .await?;
    ensure!(report.is_clean(), "{report}");
    let (_, ended) = report.terms.split_last().context("no replica led")?;
    ensure!(ended.iter().all(|term| term.is_released), "{report}");
    for (pod, tally) in &report.replicas {
        ensure!(tally.unchanged == 0, "{pod} sent writes that changed nothing: {report}");
    }
    Ok(report)
}

#[tokio::test]
async fn a_handover_with_the_servers_fence_loses_no_write() -> Result<()> {
    let environment = HaEnvironment::with_server_fence("handover-fenced", Timing::LONG).await?;
    let rounds = rounds(2)?;
    let mut running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 20, 20).await?;
    for _ in 0..rounds {
        let (leader, daemon) = environment.take_leader(&mut running).await?;
        let tail = AuditTail::of(&environment)?;
        daemon.process.signal(Signal::TERM)?;
        let other = |holder: &str| !holder.is_empty() && holder != leader;
        let next = environment.wait_for_holder("another to lead", other).await?;
        tail.wait_for_write(&environment, &next).await?;
        wait_for_clean_exit(&daemon).await?;
        running.insert(leader, environment.replica(leader).await?);
    }
    let done = load.finish(&environment.fixture).await?;
    let report = orderly_report(&environment).await?;
    ensure!(
        done.failures == 0 && report.terms.len() == rounds + 1,
        "{done:?}: {report}"
    );
    Ok(())
}

#[tokio::test]
async fn a_rolling_update_under_load_loses_and_repeats_no_write() -> Result<()> {
    let environment = HaEnvironment::new("rolling").await?;
    let mut running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 20, 20).await?;
    let rounds = rounds(1)?;
    // As in a Deployment's rolling update, a new replica starts before an old one stops.
    let replacements = PODS.into_iter().zip(SUCCESSORS);
    let reversals = SUCCESSORS.into_iter().zip(PODS);
    for (old, new) in replacements.chain(reversals).cycle().take(PODS.len() * rounds) {
        running.insert(new, environment.replica(new).await?);
        let daemon = running.remove(old).context("the old replica does not run")?;
        let tail = AuditTail::of(&environment)?;
        daemon.process.signal(Signal::TERM)?;
        wait_for_clean_exit(&daemon).await?;
        let leader = environment.leader(&running).await?;
        tail.wait_for_write(&environment, leader).await?;
    }
    let done = load.finish(&environment.fixture).await?;
    let report = orderly_report(&environment).await?;
    ensure!(done.failures == 0, "{done:?}");
    let longest = report.gaps().into_iter().max().unwrap_or_default();
    ensure!(longest <= SignedDuration::try_from(GAP_LIMIT)?, "{longest:#}: {report}");
    Ok(())
}
