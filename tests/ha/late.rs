//! A write that a leader sends during its term, and that the network delivers when another replica
//! leads.
//!
//! No client-side fence can prevent it, because the write has already been sent. The apiserver
//! rejects most such writes anyway, because of their UID and resourceVersion, or because the name
//! is taken by then. This test builds the worst case, in which the write conflicts with no object.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::{CannedResponse, Matcher, Repeat, eventually};

use crate::{
    audit::report::Report,
    environment::{HaEnvironment, Timing},
    fixtures::{LIMIT, daemon::Daemon},
    partition::Network,
};

/// The name of the object that is written late.
const NAME: &str = "late";

impl Timing {
    /// Long enough for the test to pause a process that has just sent a request before the process
    /// cancels the request.
    const PATIENT: Self = Self {
        lease: Duration::from_secs(6),
        renew_deadline: Duration::from_secs(5),
        retry_period: Duration::from_millis(500),
    };
}

/// Delivers a leader's creation of a Deployment when another replica leads, and returns the former
/// leader's pod.
async fn deliver_late(environment: &HaEnvironment) -> Result<&'static str> {
    let network = Network::new(environment).await?;
    let mut running = network.start_replicas(environment).await?;
    let (leader, daemon) = environment.take_leader(&mut running).await?;
    let proxy = network.of(leader)?;

    // The leader retries without waiting for events, so that one retry falls into the black hole.
    let creations = Matcher::any().method("POST").resource("deployments");
    let failures = proxy.respond(creations, CannedResponse::unavailable(), Repeat::UntilHealed);
    environment.fixture.create_foo(NAME, NAME, 1).await?;
    failures.wait_for_applied(3, LIMIT).await?;
    proxy.black_hole();
    wait_until_it_hangs(&daemon).await?;
    // A paused process cannot cancel the request, as it would at its deadline.
    daemon.process.pause()?;

    let next = environment.leader(&running).await?;
    ensure!(next != leader, "{leader} still leads");
    environment
        .fixture
        .wait_for_condition(NAME, "Ready", ConditionStatus::True)
        .await?;
    environment
        .fixture
        .foos()
        .delete(NAME, &DeleteParams::default())
        .await?;
    // A replica that has reconciled this Foo has also observed the deletion of the first Foo, and
    // does not recreate its Deployment.
    environment.fixture.ready_foo("canary", 1).await?;
    environment.fixture.delete_deployment(NAME).await?;
    environment.fixture.wait_for_no_deployment(NAME).await?;
    proxy.heal();
    eventually(LIMIT, "a response to the late write", || async {
        let report = environment.check()?;
        let is_accepted = report.violations.iter().any(|violation| violation.write.pod == leader);
        let is_rejected = report.rejected.iter().any(|rejected| rejected.pod == leader);
        ensure!(is_accepted || is_rejected, "{report}");
        anyhow::Ok(())
    })
    .await?;
    Ok(leader)
}

/// Waits until a reconcile hangs in a write that gets no response.
async fn wait_until_it_hangs(daemon: &Daemon) -> Result<()> {
    eventually(LIMIT, "a reconcile to hang", || async {
        let metrics = daemon.admin.metrics().await?;
        let longest = metrics.sum("workqueue_longest_running_processor_seconds", &[r#"name="Foos""#]);
        ensure!(longest > 0.2, "the longest reconcile has run for {longest} s");
        anyhow::Ok(())
    })
    .await
}

/// Ensures that there were exactly two terms and no undecided write.
fn ensure_two_terms(report: &Report) -> Result<()> {
    ensure!(report.terms.len() == 2 && report.undecided.is_empty(), "{report}");
    Ok(())
}

#[tokio::test]
async fn the_audit_checker_reports_a_write_that_is_delivered_late() -> Result<()> {
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
async fn the_servers_fence_rejects_a_write_that_is_delivered_late() -> Result<()> {
    let environment = HaEnvironment::with_server_fence("late-fenced", Timing::PATIENT).await?;
    let leader = deliver_late(&environment).await?;
    let report = environment.check()?;
    ensure_two_terms(&report)?;
    ensure!(report.is_clean(), "{report}");
    let rejected: Vec<_> = report
        .rejected
        .iter()
        .filter(|rejected| rejected.pod == leader)
        .collect();
    ensure!(rejected.len() == 1 && rejected[0].code == 403, "{report}");
    Ok(())
}
