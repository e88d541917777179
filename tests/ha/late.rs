//! A write that a leader was right to send, and that the network delivers when another leads.
//!
//! No fence of a client's can prevent it: the write had left. Most such writes are refused anyway, because they carry a UID and a
//! resourceVersion or a name that is taken by then. This one is made to be the worst case: nothing of what it would collide with is
//! left.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::{CannedResponse, Matcher, Repeat, eventually};

use crate::{
    audit::Report,
    fixtures::{HaEnvironment, Timing},
    partition::Network,
    support::{LIMIT, daemon::Daemon},
};

/// What is written late.
const NAME: &str = "late";

impl Timing {
    /// Enough for a busy machine to stop a process that has just sent something, before it gives that up.
    const PATIENT: Self = Self {
        lease: Duration::from_secs(6),
        renew_deadline: Duration::from_secs(5),
        retry_period: Duration::from_millis(500),
    };
}

/// Has a leader's creation of a Deployment delivered when another leads, and returns the former leader's pod.
async fn deliver_late(environment: &HaEnvironment) -> Result<&'static str> {
    let network = Network::new(environment).await?;
    let mut running = network.start_replicas(environment).await?;
    let leader = environment.leader(&running).await?;
    let daemon = running.remove(leader).context("it is one of the replicas")?;
    let proxy = network.of(leader)?;

    // It tries again and again, with nothing to hear in between; so a try falls into the black hole.
    let creations = Matcher::any().method("POST").resource("deployments");
    let refusals = proxy.respond(creations, CannedResponse::unavailable(), Repeat::UntilHealed);
    environment.fixture.create_foo(NAME, NAME, 1).await?;
    refusals.wait_for_applied(3, LIMIT).await?;
    proxy.black_hole();
    wait_until_it_hangs(&daemon).await?;
    // Stopped, it cannot take back what it has sent, as it would at its deadline.
    daemon.process.pause()?;

    let next = environment.leader(&running).await?;
    ensure!(next != leader, "{leader} leads still");
    environment
        .fixture
        .wait_for_condition(NAME, "Ready", ConditionStatus::True)
        .await?;
    environment
        .fixture
        .foos()
        .delete(NAME, &DeleteParams::default())
        .await?;
    // Who has heard of this one has heard that the other one is gone, and does not make its Deployment again.
    environment.fixture.settled_foo("witness", 1).await?;
    environment.fixture.delete_deployment(NAME).await?;
    environment.fixture.wait_for_no_deployment(NAME).await?;
    proxy.heal();
    eventually(LIMIT, "the late write to be answered", || async {
        let report = environment.check()?;
        let is_granted = report.violations.iter().any(|violation| violation.write.pod == leader);
        let is_refused = report.refused.iter().any(|refused| refused.pod == leader);
        ensure!(is_granted || is_refused, "{report}");
        anyhow::Ok(())
    })
    .await?;
    Ok(leader)
}

/// Waits until a reconcile does not come to its end, since a write of it is not answered.
async fn wait_until_it_hangs(daemon: &Daemon) -> Result<()> {
    eventually(LIMIT, "a reconcile to hang", || async {
        let metrics = daemon.admin.metrics().await?;
        let longest = metrics.sum("workqueue_longest_running_processor_seconds", &[r#"name="Foos""#]);
        ensure!(longest > 0.2, "the longest has run for {longest} s");
        anyhow::Ok(())
    })
    .await
}

/// Both are as much as the story needs, and no more.
fn ensure_two_terms(report: &Report) -> Result<()> {
    ensure!(report.terms.len() == 2 && report.undecided.is_empty(), "{report}");
    Ok(())
}

#[tokio::test]
async fn a_write_that_is_delivered_late_is_the_stray_that_the_judge_calls_it() -> Result<()> {
    let environment = HaEnvironment::with_timing("late", Timing::PATIENT).await?;
    let leader = deliver_late(&environment).await?;
    let report = environment.check()?;
    println!("{report}");
    ensure_two_terms(&report)?;
    ensure!(report.late_writes() == 1 && report.violations.len() == 1, "{report}");
    let stray = &report.violations[0].write;
    ensure!(
        (&*stray.pod, &*stray.verb, &*stray.target.name) == (leader, "create", NAME),
        "{report}"
    );
    Ok(())
}

#[tokio::test]
async fn with_the_servers_fence_a_write_that_is_delivered_late_is_refused() -> Result<()> {
    let environment = HaEnvironment::with_server_fence("late-fenced", Timing::PATIENT).await?;
    let leader = deliver_late(&environment).await?;
    let report = environment.check()?;
    ensure_two_terms(&report)?;
    ensure!(report.is_clean(), "{report}");
    let refused: Vec<_> = report.refused.iter().filter(|refused| refused.pod == leader).collect();
    ensure!(refused.len() == 1 && refused[0].code == 403, "{report}");
    Ok(())
}
