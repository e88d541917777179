//! A write that a leader sends during its term, and that the network delivers when another replica
//! leads.
//!
//! No client-side fence can prevent it, because the write has already been sent. The apiserver
//! rejects most such writes anyway, because of their UID and resourceVersion, or because the name
//! is taken by then. Most of these tests build the worst case, in which the write conflicts with no
//! object.

use anyhow::{Context, Result, ensure};
use kube::{ResourceExt, api::DeleteParams};
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::{CannedResponse, Fault, Matcher, Repeat, Signal, eventually};

use super::{
    environment::{HaEnvironment, PODS, RunningReplicas, Timing},
    partition::Network,
};
use crate::{
    audit::{AuditLog, Event, event::Stage, report::Report},
    fixtures::{LIMIT, admission_gate::AdmissionGate},
};

/// The name of the object that is written late.
const NAME: &str = "late";

/// A creation of a Deployment that the network holds, and that its sender cannot take back.
struct LateWrite {
    network: Network,
    /// The pod of the sender, which led when it sent the write.
    sender: &'static str,
    /// The other replicas.
    running: RunningReplicas,
}

impl LateWrite {
    /// Breaks the connection of the write, and stops the leader, which releases the Lease.
    async fn of_stopped_leader(environment: &HaEnvironment) -> Result<Self> {
        let network = Network::new(environment).await?;
        let mut running = network.start_replicas(environment).await?;
        let (sender, daemon) = environment.take_leader(&mut running).await?;
        let proxy = network.of(sender)?;
        let held = proxy.fault(creations(), Fault::ForwardLate, Repeat::Next(1));
        // The retries fail too.
        proxy.respond(creations(), CannedResponse::unavailable(), Repeat::UntilHealed);
        environment.fixture.create_foo(NAME, NAME, 1).await?;
        held.wait_for_applied(1, LIMIT).await?;
        daemon.process.signal(Signal::TERM)?;
        let status = daemon.process.wait(LIMIT).await?;
        ensure!(status.code() == Some(0), "{status}{}", daemon.process.log_tail());
        Ok(Self {
            network,
            sender,
            running,
        })
    }

    /// Waits until another replica has created the Deployment itself.
    async fn wait_for_successor(&self, environment: &HaEnvironment) -> Result<()> {
        let next = environment.leader(&self.running).await?;
        ensure!(next != self.sender, "{next} still leads");
        let fixture = &environment.fixture;
        fixture.wait_for_condition(NAME, "Ready", ConditionStatus::True).await?;
        Ok(())
    }

    /// Deletes the Foo and the Deployment, so that the write conflicts with no object.
    async fn delete_objects(&self, environment: &HaEnvironment) -> Result<()> {
        let fixture = &environment.fixture;
        fixture.foos().delete(NAME, &DeleteParams::default()).await?;
        // A replica that has reconciled this Foo has also observed the deletion of the first Foo,
        // and does not recreate its Deployment.
        fixture.ready_foo("canary", 1).await?;
        fixture.delete_deployment(NAME).await?;
        fixture.wait_for_no_deployment(NAME).await
    }

    /// Delivers the write, and returns what the audit log shows once the apiserver has responded.
    async fn deliver(&self, environment: &HaEnvironment) -> Result<Report> {
        self.network.of(self.sender)?.heal();
        let report = eventually(LIMIT, "a response to the late write", || async {
            let report = environment.check()?;
            let is_accepted = report
                .violations
                .iter()
                .any(|violation| violation.write.pod == self.sender);
            let is_rejected = report.rejected.iter().any(|rejected| rejected.pod == self.sender);
            ensure!(is_accepted || is_rejected, "{report}");
            anyhow::Ok(report)
        })
        .await?;
        ensure!(report.terms.len() == 2 && report.undecided.is_empty(), "{report}");
        Ok(report)
    }

    /// Ensures that the apiserver executed the write, as the only one that it should not have.
    fn ensure_stray(&self, report: &Report) -> Result<()> {
        ensure!(report.late_writes() == 1 && report.violations.len() == 1, "{report}");
        let stray = &report.violations[0].write;
        ensure!(
            (&*stray.pod, &*stray.verb, &*stray.target.name) == (self.sender, "create", NAME),
            "{report}"
        );
        Ok(())
    }

    /// Ensures that the apiserver rejected the write with this code.
    fn ensure_rejected(&self, report: &Report, code: u16) -> Result<()> {
        ensure!(report.is_clean(), "{report}");
        let rejected = report.rejected.iter().filter(|rejected| rejected.pod == self.sender);
        let codes: Vec<_> = rejected.map(|rejected| rejected.code).collect();
        ensure!(codes == [code], "{report}");
        Ok(())
    }
}

/// Selects the creations of Deployments.
fn creations() -> Matcher {
    Matcher::any().method("POST").resource("deployments")
}

#[tokio::test]
async fn a_write_that_got_no_response_may_arrive_after_the_release_of_the_lease() -> Result<()> {
    let environment = HaEnvironment::new("released").await?;
    let write = LateWrite::of_stopped_leader(&environment).await?;
    write.wait_for_successor(&environment).await?;
    let foo = environment.fixture.foos().get(NAME).await?;
    write.delete_objects(&environment).await?;
    let report = write.deliver(&environment).await?;
    ensure!(report.terms[0].is_released, "{report}");
    write.ensure_stray(&report)?;
    // Its owner does not exist, so the garbage collector deletes it.
    let deployment = environment.fixture.deployments().get(NAME).await?;
    let owners: Vec<_> = deployment.owner_references().iter().map(|owner| &owner.uid).collect();
    ensure!(owners == foo.metadata.uid.iter().collect::<Vec<_>>(), "{owners:?}");
    Ok(())
}

#[tokio::test]
async fn a_late_creation_conflicts_with_the_object_of_the_next_leader() -> Result<()> {
    let environment = HaEnvironment::new("released-conflict").await?;
    let write = LateWrite::of_stopped_leader(&environment).await?;
    write.wait_for_successor(&environment).await?;
    let report = write.deliver(&environment).await?;
    ensure!(report.terms[0].is_released, "{report}");
    write.ensure_rejected(&report, 409)
}

#[tokio::test]
async fn the_servers_fence_rejects_a_write_that_arrives_after_the_release_of_the_lease() -> Result<()> {
    let environment = HaEnvironment::with_server_fence("released-fenced", Timing::LONG).await?;
    let write = LateWrite::of_stopped_leader(&environment).await?;
    write.wait_for_successor(&environment).await?;
    write.delete_objects(&environment).await?;
    let report = write.deliver(&environment).await?;
    ensure!(report.terms[0].is_released, "{report}");
    write.ensure_rejected(&report, 403)
}

/// Without this, every write of a leader that crashes or gives up could arrive late, and not only
/// those whose end the network hides from the apiserver.
#[tokio::test]
async fn the_apiserver_cancels_a_write_when_its_connection_closes() -> Result<()> {
    let environment = HaEnvironment::with_timing("closed", Timing::EXPIRING).await?;
    let mut running = environment.start_replicas(&PODS[..2]).await?;
    let (_, daemon) = environment.take_leader(&mut running).await?;
    let gate = AdmissionGate::close(&environment.plane, &environment.fixture).await?;
    environment.fixture.create_foo(NAME, NAME, 1).await?;
    let write = gate.hold().await?;
    // The end of the process closes its connections.
    drop(daemon);
    let log = AuditLog::of(&environment.plane)?;
    let response = eventually(LIMIT, "the apiserver to cancel the write", || async {
        let of_leader = log.events_since(0)?.into_iter().filter(Event::is_of_daemon);
        let mut responses = of_leader.filter(|event| event.stage == Stage::ResponseComplete);
        let response = responses.find(|event| (&*event.verb, event.resource()) == ("create", "deployments"));
        response.context("the write is still in flight")
    })
    .await?;
    ensure!(response.code() == 504, "{response}");
    // Now the webhook lets all writes pass.
    drop((write, gate));
    environment
        .fixture
        .wait_for_condition(NAME, "Ready", ConditionStatus::True)
        .await?;
    let report = environment.check()?;
    ensure!(report.is_clean() && report.rejected.is_empty(), "{report}");
    ensure!(report.terms.len() == 2 && report.terms[0].writes.count == 0, "{report}");
    Ok(())
}
