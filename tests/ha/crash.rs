//! A leader that is killed, and one that sleeps through its lease.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use portreeve_testing::Signal;

use crate::{
    audit::Report,
    audit_tail::AuditTail,
    duration_summary::{DurationSummary, rounds},
    fixtures::{HaEnvironment, PODS, RunningReplicas, Timing},
    load::Load,
    race::GHOST,
    support::LIMIT,
};

/// How much later than the end of the lease the next one may write. The promise is 300 ms; a machine that is busy with other things
/// gets more.
const LATE: Duration = Duration::from_secs(3);
/// How much later than its own acquisition the next one may write. The promise is 100 ms.
const REACTION: Duration = Duration::from_secs(1);

/// From the last renewal of each term to the first write of the next, and from taking the Lease to it. Terms that end by a release are
/// left out.
fn figures(report: &Report) -> (DurationSummary, DurationSummary) {
    let crashes = report.successions().filter(|(former, _)| !former.is_released);
    let (takeovers, reactions): (Vec<SignedDuration>, Vec<_>) = crashes
        .filter_map(|(former, next)| Some((next.writes.first?.duration_since(former.renewed), next.reaction()?)))
        .unzip();
    (DurationSummary::of(takeovers), DurationSummary::of(reactions))
}

/// No replica took a Lease before it had ended by the apiserver's clock, which saw the last renewal before any candidate did.
pub(crate) fn ensure_no_steal(report: &Report, lease: Duration) -> Result<()> {
    let by_replicas = report.successions().filter(|(_, next)| next.holder != GHOST);
    for (former, next) in by_replicas.filter(|(former, _)| !former.is_released) {
        let after = next.acquired.duration_since(former.renewed);
        let stolen = SignedDuration::try_from(lease)? > after;
        ensure!(!stolen, "{} took it {after:#} after a renewal: {report}", next.holder);
    }
    Ok(())
}

#[tokio::test]
async fn when_the_leader_is_killed_another_acts_as_soon_as_the_lease_has_ended() -> Result<()> {
    let environment = HaEnvironment::new("killed").await?;
    let mut running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 20, 20).await?;
    let rounds = rounds(3)?;
    for _ in 0..rounds {
        let leader = environment.leader(&running).await?;
        let daemon = running.remove(leader).context("it is one of the replicas")?;
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
    let (takeovers, reactions) = figures(&report);
    println!(
        "takeover after SIGKILL, from the last renewal, with a lease of {:?}: {takeovers}",
        environment.timing.lease
    );
    println!("first write after taking the Lease: {reactions}");
    ensure!(report.is_clean() && done.failures == 0, "{done:?}: {report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    ensure!(takeovers.count() == rounds, "{report}");
    ensure!(takeovers.max() <= environment.timing.lease + LATE, "{takeovers}");
    ensure!(reactions.median() <= REACTION, "{reactions}");
    Ok(())
}

/// A leader that is stopped until another has taken over and written, and then goes on; so many times. Returns what the judge found.
///
/// Its connections stay open, and changes that it would react to arrive on them all the time.
async fn sleep_through(environment: &HaEnvironment, rounds: usize) -> Result<Report> {
    let mut running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 20, 100).await?;
    for _ in 0..rounds {
        let leader = environment.leader(&running).await?;
        let daemon = running.remove(leader).context("it is one of the replicas")?;
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
    let (takeovers, _) = figures(&report);
    println!("takeover after SIGSTOP, from the last renewal: {takeovers}");
    println!(
        "{} writes by a leader that had slept through its lease, {} of them after its successor's first, in {rounds} rounds",
        report.violations.len(),
        report.late_writes()
    );
    ensure!(
        done.failures == 0 && report.terms.len() == rounds + 1,
        "{done:?}: {report}"
    );
    ensure!(report.undecided.is_empty(), "{report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    Ok(report)
}

#[tokio::test]
async fn a_leader_that_sleeps_through_its_lease_writes_nothing_when_it_wakes() -> Result<()> {
    let environment = HaEnvironment::new("asleep").await?;
    let rounds = rounds(2)?;
    let report = sleep_through(&environment, rounds).await?;
    // A process can be stopped between its look at the fence and its write, and no client can prevent that: such strays are counted.
    // One in each round would be a fence that does not close.
    ensure!(report.violations.len() < rounds.max(2), "{report}");
    Ok(())
}

#[tokio::test]
async fn with_the_servers_fence_not_even_a_write_that_was_under_way_gets_through() -> Result<()> {
    let environment = HaEnvironment::with_server_fence("asleep-fenced", Timing::SHORT).await?;
    let report = sleep_through(&environment, rounds(2)?).await?;
    let denied = report.refused.iter().filter(|refused| refused.code == 403).count();
    println!("{denied} writes were refused by the server's fence");
    // By the time that the sleeper wakes, its successor has written: the policy follows the Lease already.
    ensure!(report.violations.is_empty(), "{report}");
    Ok(())
}
