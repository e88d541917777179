//! Each fault of single requests, alone.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::DeleteParams};
use portreeve_testing::{BodyFault, Fault, Matcher, Repeat, eventually};

use crate::{
    audit::AuditLog,
    chaos::scenario::Scenario,
    faults::requests::{self, RequestFault, Target},
    fixtures::{
        LIMIT,
        schedules::{Kind, minutes},
    },
    profile::{Reads, STEP},
};

/// The number of watches that fall silent.
const WATCHES: u64 = 40;

async fn run_with_each_fault(is_selected: fn(&RequestFault) -> bool) -> Result<()> {
    let mut scenario = Scenario::start().await?;
    for request_fault in requests::all().into_iter().filter(is_selected) {
        if request_fault.target == Target::Lists {
            // Without a restart, the informers' backoff would grow with each fault, because no
            // watch lasts long enough to reset it.
            scenario = scenario.restart().await?;
        }
        let healed = request_fault.inject_during(&scenario.proxy, async || scenario.work.wave().await);
        healed.await.with_context(|| format!("{request_fault:?}"))?;
        let verified = scenario.verify().await;
        verified.with_context(|| format!("{request_fault:?}"))?;
    }
    scenario.finish().await
}

#[tokio::test]
async fn failed_writes_are_retried() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Writes).await
}

#[tokio::test]
async fn failed_reads_are_retried() -> Result<()> {
    run_with_each_fault(|request_fault| matches!(request_fault.target, Target::Reads(_))).await
}

/// A controller reads a Job that is in the status but not in the cache before it removes the Job
/// from the status.
#[tokio::test]
async fn a_deleted_running_job_leaves_the_status_although_reads_of_it_fail() -> Result<()> {
    let scenario = Scenario::start().await?;
    let jobs: Api<Job> = scenario.work.fixture.namespace.api();
    let mut slot = scenario.work.slot();
    for fault in requests::reads() {
        let target = Target::Reads(Reads::AfterDeletion);
        let request_fault = RequestFault { target, fault };
        let deletions = async || {
            for kind in Kind::BOTH {
                let running = kind.job_of(kind.name(), slot);
                jobs.delete(&running, &DeleteParams::background()).await?;
            }
            Ok(())
        };
        let healed = request_fault.inject_during(&scenario.proxy, deletions).await;
        healed.with_context(|| format!("{request_fault:?}"))?;
        slot += minutes(STEP);
        scenario.clock.set(slot);
        for kind in Kind::BOTH {
            wait_for_only_active_job(&scenario, kind, &kind.job_of(kind.name(), slot)).await?;
        }
    }
    scenario.ensure_healthy(|_| false).await?;
    AuditLog::of(&scenario.plane)?.check_effects()?;
    scenario.finish().await
}

/// Waits until the status of a schedule has this Job as its only active one.
async fn wait_for_only_active_job(scenario: &Scenario, kind: Kind, job: &str) -> Result<()> {
    let objects = kind.objects(&scenario.work.fixture.namespace);
    eventually(LIMIT, &format!("{job} to be the only active Job"), || async {
        let object = objects.get(kind.name()).await?;
        let active = object.data["status"]["active"]
            .as_array()
            .context("the status has no active Jobs")?;
        ensure!(active.len() == 1 && active[0]["name"] == *job, "{active:?}");
        anyhow::Ok(())
    })
    .await
}

fn is_body_fault(request_fault: &RequestFault) -> bool {
    matches!(request_fault.fault, Fault::Body(_))
}

#[tokio::test]
async fn failed_lists_are_retried() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Lists && !is_body_fault(request_fault)).await
}

#[tokio::test]
async fn broken_lists_are_retried() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Lists && is_body_fault(request_fault)).await
}

#[tokio::test]
async fn broken_watches_are_resumed() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Watches && is_body_fault(request_fault)).await
}

#[tokio::test]
async fn failed_or_late_watches_are_retried() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Watches && !is_body_fault(request_fault)).await
}

#[tokio::test]
async fn silent_watches_are_given_up_and_restarted() -> Result<()> {
    let mut scenario = Scenario::start_with(&["--watch-idle-timeout=3s"], async |_| Ok(())).await?;
    let stalled = Fault::Body(BodyFault::StallAt(200));
    let counter = scenario.proxy.fault(Matcher::watches(), stalled, Repeat::Next(WATCHES));
    scenario.proxy.reset();
    counter.wait_for_applied(WATCHES, LIMIT).await?;
    scenario.work.wave().await?;
    // The test does not heal the fault, and with such a short idle timeout some watches are stale
    // for a moment.
    scenario
        .verify_with_failing_checks(|line| line.contains("stale"))
        .await?;
    scenario.finish().await
}
