//! A leader that is killed, and a leader that is paused until its lease has expired.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use portreeve_testing::Signal;

use super::{
    audit_tail::AuditTail,
    environment::{HaEnvironment, PODS, RunningReplicas, Timing},
    load::Load,
};
use crate::{
    audit::report::Report,
    fixtures::{LIMIT, rounds::rounds},
};

/// The number of stray writes that
/// [`a_leader_that_wakes_after_its_lease_sends_at_most_one_stray_write`] allows in all its rounds
/// together.
///
/// It is not zero because the leader can be paused between its check of the fence and its write,
/// and then sends the write when it wakes. No client-side fence can prevent that. A fence that does
/// not close would let a write pass in every round.
const STRAY_WRITES: usize = 1;

/// Ensures that no replica took a Lease that had not expired by the apiserver's clock. The
/// apiserver stores a renewal before any candidate sees it.
pub(crate) fn ensure_no_steal(report: &Report, lease: Duration) -> Result<()> {
    for (former, next) in report.successions().filter(|(former, _)| !former.is_released) {
        let after = next.acquired.duration_since(former.renewed);
        let stolen = SignedDuration::try_from(lease)? > after;
        ensure!(
            !stolen,
            "{} acquired the Lease {after:#} after a renewal: {report}",
            next.holder
        );
    }
    Ok(())
}

#[tokio::test]
async fn another_replica_leads_once_the_lease_of_a_killed_leader_has_expired() -> Result<()> {
    let environment = HaEnvironment::with_timing("killed", Timing::EXPIRING).await?;
    let mut running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 20, 20).await?;
    let rounds = rounds(2)?;
    for _ in 0..rounds {
        let (leader, daemon) = environment.take_leader(&mut running).await?;
        let tail = AuditTail::of(&environment)?;
        daemon.process.signal(Signal::KILL)?;
        daemon.process.wait(LIMIT).await?;
        let next = environment
            .wait_for_holder("another to lead", |holder| holder != leader)
            .await?;
        tail.wait_for_write(&environment, &next).await?;
        running.insert(leader, environment.replica(leader).await?);
    }
    let done = load.finish(&environment.fixture).await?;
    let report = environment.check()?;
    ensure!(report.is_clean() && done.failures == 0, "{done:?}: {report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    let crashes = report
        .successions()
        .filter(|(former, next)| !former.is_released && next.writes.first.is_some());
    ensure!(crashes.count() == rounds, "{report}");
    Ok(())
}

/// Pauses the leader with SIGSTOP until another replica has taken over and written, then resumes
/// it; `rounds` times. Returns the audit checker's report.
///
/// The paused leader's connections stay open, and changes that it would react to keep arriving on
/// them.
async fn pause_leaders(environment: &HaEnvironment, rounds: usize) -> Result<Report> {
    let mut running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 20, 100).await?;
    for _ in 0..rounds {
        let (leader, daemon) = environment.take_leader(&mut running).await?;
        let tail = AuditTail::of(environment)?;
        let paused = daemon.process.pause();
        paused.with_context(|| daemon.process.log_tail())?;
        let next = environment
            .wait_for_holder("another to lead", |holder| holder != leader)
            .await?;
        tail.wait_for_write(environment, &next).await?;
        daemon.process.resume()?;
        let status = daemon.process.wait(LIMIT).await?;
        ensure!(status.code() == Some(2), "{status}{}", daemon.process.log_tail());
        daemon.wait_for_line(&["lost the lease"]).await?;
        running.insert(leader, environment.replica(leader).await?);
    }
    let done = load.finish(&environment.fixture).await?;
    let report = environment.check()?;
    ensure!(
        done.failures == 0 && report.terms.len() == rounds + 1,
        "{done:?}: {report}"
    );
    ensure!(report.undecided.is_empty(), "{report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    Ok(report)
}

#[tokio::test]
async fn a_leader_that_wakes_after_its_lease_sends_at_most_one_stray_write() -> Result<()> {
    let environment = HaEnvironment::with_timing("asleep", Timing::EXPIRING).await?;
    let report = pause_leaders(&environment, rounds(2)?).await?;
    ensure!(report.violations.len() <= STRAY_WRITES, "{report}");
    Ok(())
}

#[tokio::test]
async fn the_servers_fence_rejects_writes_of_a_former_leader_once_its_successor_has_written() -> Result<()> {
    let environment = HaEnvironment::with_server_fence("asleep-fenced", Timing::EXPIRING).await?;
    let report = pause_leaders(&environment, rounds(1)?).await?;
    // The former leader wakes after its successor has written, so the admission policy has observed
    // the new holder.
    ensure!(report.violations.is_empty(), "{report}");
    Ok(())
}
