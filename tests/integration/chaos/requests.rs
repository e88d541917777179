//! Each fault of single requests, alone.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, api::DeleteParams};
use portreeve_testing::{BodyFault, Fault, Matcher, Repeat, eventually};

use super::{
    faults::{self, RequestFault, Target},
    record,
    scenario::Scenario,
    work::STEP,
};
use crate::{
    schedules::{
        fixtures::{job_of, minutes},
        kinds::Kind,
    },
    support::SETTLED,
};

/// Who has schedules.
const SCHEDULERS: [&str; 2] = ["crontab-controller", "cronjob-controller"];
/// How many requests of each a fault meets: what is tried again, too.
const MET: u64 = 2;
/// How many watches a fault meets before there is anything to tell: most of them.
const WATCHES: u64 = 40;

/// One wave with this fault, and what there is to see when it is over.
async fn run_with_fault(scenario: &mut Scenario, request_fault: &RequestFault) -> Result<()> {
    let is_watch = request_fault.target == Target::Watches;
    let times = if is_watch {
        Repeat::UntilHealed
    } else if request_fault.holds() {
        Repeat::Next(1)
    } else {
        Repeat::Next(MET)
    };
    let met = request_fault.inject(&scenario.proxy, times);
    if is_watch {
        for (_, met) in &met {
            met.wait_for_applied(WATCHES, SETTLED).await?;
        }
    }
    scenario.work.wave().await?;
    for (who, met) in met {
        met.wait_for_applied(1, SETTLED).await.context(who)?;
    }
    scenario.proxy.heal();
    scenario.verify().await
}

async fn run_with_each_fault(is_meant: fn(&RequestFault) -> bool) -> Result<()> {
    let mut scenario = Scenario::start().await?;
    for request_fault in faults::all().into_iter().filter(is_meant) {
        if request_fault.target == Target::Lists {
            // Or else they would wait for longer with each fault, as long as none of their watches goes on for a while.
            scenario = scenario.restart().await?;
        }
        let begun = Instant::now();
        let ended = run_with_fault(&mut scenario, &request_fault).await;
        ended.with_context(|| format!("{request_fault:?}"))?;
        println!("{request_fault:?}: {:?}", begun.elapsed());
    }
    scenario.finish().await
}

#[tokio::test]
async fn writes_that_fail_are_made_up_for() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Writes).await
}

#[tokio::test]
async fn reads_that_fail_are_made_up_for() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Reads).await
}

/// A Job that a status names and no cache knows is read before it is forgotten.
#[tokio::test]
async fn a_running_job_that_others_delete_is_forgotten_though_reads_of_it_fail() -> Result<()> {
    let scenario = Scenario::start().await?;
    let jobs: Api<Job> = scenario.work.fixture.namespace.api();
    let mut slot = scenario.work.slot;
    for request_fault in faults::all() {
        if request_fault.target != Target::Reads {
            continue;
        }
        let times = if request_fault.holds() {
            Repeat::Next(1)
        } else {
            Repeat::Next(MET)
        };
        let met = SCHEDULERS.map(|name| {
            let reads = Matcher::objects().user_agent(name);
            scenario.proxy.fault(reads, request_fault.fault.clone(), times)
        });
        for kind in Kind::BOTH {
            let running = job_of(kind.name(), slot);
            jobs.delete(&running, &DeleteParams::background()).await?;
        }
        for (who, met) in SCHEDULERS.iter().zip(&met) {
            let met = met.wait_for_applied(1, SETTLED).await;
            met.with_context(|| format!("{who}, {request_fault:?}"))?;
        }
        scenario.proxy.heal();
        slot += minutes(STEP);
        scenario.clock.set(slot);
        for kind in Kind::BOTH {
            until_only(&scenario, kind, &job_of(kind.name(), slot)).await?;
        }
    }
    scenario.ensure_healthy(|_| false).await?;
    record::ensure_clean(&scenario.plane)?;
    scenario.finish().await
}

/// Waits until the status of a schedule names this Job alone.
async fn until_only(scenario: &Scenario, kind: Kind, job: &str) -> Result<()> {
    let objects = kind.objects(&scenario.work.fixture.namespace);
    eventually(SETTLED, &format!("{job} to be the only one"), || async {
        let object = objects.get(kind.name()).await?;
        let active = object.data["status"]["active"].as_array().context("it has none")?;
        ensure!(active.len() == 1 && active[0]["name"] == *job, "{active:?}");
        anyhow::Ok(())
    })
    .await
}

fn is_body_fault(request_fault: &RequestFault) -> bool {
    matches!(request_fault.fault, Fault::Body(_))
}

#[tokio::test]
async fn lists_that_are_refused_are_made_up_for() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Lists && !is_body_fault(request_fault)).await
}

#[tokio::test]
async fn lists_that_break_are_made_up_for() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Lists && is_body_fault(request_fault)).await
}

#[tokio::test]
async fn watches_that_break_are_gone_on_with() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Watches && is_body_fault(request_fault)).await
}

#[tokio::test]
async fn watches_that_are_refused_or_late_are_made_up_for() -> Result<()> {
    run_with_each_fault(|request_fault| request_fault.target == Target::Watches && !is_body_fault(request_fault)).await
}

#[tokio::test]
async fn watches_that_go_silent_for_ever_are_given_up_and_begun_anew() -> Result<()> {
    let mut scenario = Scenario::start_with(&["--watch-idle-timeout=3s"], async |_| Ok(())).await?;
    let silent = Fault::Body(BodyFault::StallAt(200));
    let met = scenario.proxy.fault(Matcher::watches(), silent, Repeat::Next(WATCHES));
    scenario.proxy.reset();
    met.wait_for_applied(WATCHES, SETTLED).await?;
    scenario.work.wave().await?;
    // Nobody heals them, and with so little patience some are stale for a moment.
    scenario
        .verify_with_failing_checks(|line| line.contains("stale"))
        .await?;
    scenario.finish().await
}
