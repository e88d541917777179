//! Candidates that want the same Lease at the same moment.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use portreeve_testing::Signal;
use serde_json::json;

use crate::{
    crash::ensure_no_steal,
    figures::rounds,
    load::Load,
    stage::{Cast, LEASE, PODS, Stage},
    support::LIMIT,
    tail::Tail,
};

/// Who holds the Lease before each race, and does not renew it.
pub(crate) const GHOST: &str = "ghost_0";

#[tokio::test]
async fn of_candidates_that_race_for_an_expired_lease_one_wins() -> Result<()> {
    let stage = Stage::new("race").await?;
    let mut cast: Cast = stage.cast(&PODS).await?;
    let load = Load::start(&stage.scene, 5, 10).await?;
    let rounds = rounds(2)?;
    for _ in 0..rounds {
        let leader = stage.leader(&cast).await?;
        let daemon = cast.remove(leader).context("it is one of the cast")?;
        // Stopped first, so that it does not take part: two are left, and hear of the ghost at the same moment.
        daemon.process.signal(Signal::KILL)?;
        daemon.process.wait(LIMIT).await?;
        let tail = Tail::of(&stage)?;
        give_to_the_ghost(&stage).await?;
        let winner = stage.leader(&cast).await?;
        tail.wait_until_acts(&stage, winner).await?;
        cast.insert(leader, stage.replica(leader).await?);
    }
    let done = load.finish(&stage.scene).await?;
    let report = stage.judge()?;
    println!(
        "{} candidates came second in {rounds} races for an expired lease",
        report.contested
    );
    ensure!(report.is_clean() && done.failures == 0, "{done:?}: {report}");
    ensure_no_steal(&report, stage.timing.lease)?;
    let ghosts = report.terms.iter().filter(|term| term.holder == GHOST).count();
    ensure!(ghosts == rounds && report.terms.len() == 2 * rounds + 1, "{report}");
    Ok(())
}

/// Takes the Lease in the name of somebody who does not exist.
async fn give_to_the_ghost(stage: &Stage) -> Result<()> {
    let leases: Api<Lease> = stage.home.api();
    let now = MicroTime(Timestamp::now());
    let spec = json!({
        "holderIdentity": GHOST,
        "leaseDurationSeconds": stage.timing.lease.as_secs(),
        "acquireTime": now,
        "renewTime": now,
    });
    let patch = Patch::Merge(json!({ "spec": spec }));
    leases.patch(LEASE, &PatchParams::default(), &patch).await?;
    Ok(())
}
