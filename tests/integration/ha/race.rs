//! Candidates that try to acquire the same Lease at the same moment.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use portreeve_testing::Signal;
use serde_json::json;

use super::{
    audit_tail::AuditTail,
    crash::ensure_no_steal,
    environment::{HaEnvironment, LEASE, PODS, RunningReplicas, Timing},
    load::Load,
};
use crate::fixtures::{LIMIT, rounds::rounds};

/// The holder of the Lease before each race, which never renews it.
pub(crate) const GHOST: &str = "ghost_0";

#[tokio::test]
async fn exactly_one_of_several_candidates_acquires_an_expired_lease() -> Result<()> {
    let environment = HaEnvironment::with_timing("race", Timing::EXPIRING).await?;
    let mut running: RunningReplicas = environment.start_replicas(&PODS).await?;
    let load = Load::start(&environment.fixture, 5, 10).await?;
    let rounds = rounds(2)?;
    for _ in 0..rounds {
        let (leader, daemon) = environment.take_leader(&mut running).await?;
        // The leader is killed first and does not take part. The other two observe the ghost at the
        // same moment.
        daemon.process.signal(Signal::KILL)?;
        daemon.process.wait(LIMIT).await?;
        let tail = AuditTail::of(&environment)?;
        set_ghost_as_holder(&environment).await?;
        let winner = environment.leader(&running).await?;
        tail.wait_for_write(&environment, winner).await?;
        running.insert(leader, environment.replica(leader).await?);
    }
    let done = load.finish(&environment.fixture).await?;
    let report = environment.check()?;
    println!(
        "{} candidates lost in {rounds} races for an expired lease",
        report.lease_conflicts
    );
    ensure!(report.is_clean() && done.failures == 0, "{done:?}: {report}");
    ensure_no_steal(&report, environment.timing.lease)?;
    let ghosts = report.terms.iter().filter(|term| term.holder == GHOST).count();
    ensure!(ghosts == rounds && report.terms.len() == 2 * rounds + 1, "{report}");
    Ok(())
}

/// Makes [`GHOST`], an identity without a process, the holder of the Lease.
async fn set_ghost_as_holder(environment: &HaEnvironment) -> Result<()> {
    let leases: Api<Lease> = environment.system_namespace.api();
    let now = MicroTime(Timestamp::now());
    let spec = json!({
        "holderIdentity": GHOST,
        "leaseDurationSeconds": environment.timing.lease.as_secs(),
        "acquireTime": now,
        "renewTime": now,
    });
    let patch = Patch::Merge(json!({ "spec": spec }));
    leases.patch(LEASE, &PatchParams::default(), &patch).await?;
    Ok(())
}
