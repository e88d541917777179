//! The watch of Jobs is held up: the controller knows its own Jobs from the answers of the
//! apiserver alone.

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::api::DeleteParams;
use portreeve_testing::{BodyFault, Fault, Matcher, Repeat};
use serde_json::{Value, json};

use super::environment::ScheduleEnvironment;
use crate::fixtures::{
    jobs::Jobs,
    schedules::{Kind, minutes, next_minute},
};

/// Longer than the controller relies on an answer.
const VALIDITY: SignedDuration = SignedDuration::from_secs(31);

fn policy(policy: &str) -> Value {
    json!({"concurrencyPolicy": policy})
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "the steps depend on each other")]
async fn no_run_is_doubled_or_repeated_while_the_watch_of_jobs_is_held_up() -> Result<()> {
    let watches = Matcher::watches().resource("jobs");
    let stall = Fault::Body(BodyFault::StallAt(0));
    let (environment, proxy) = ScheduleEnvironment::start_behind_proxy(|proxy| {
        proxy.fault(watches, stall, Repeat::UntilHealed);
    })
    .await?;
    let creations = Matcher::any().method("POST").resource("jobs");
    let creations = creations.user_agent(Kind::CronJob.controller());
    let lost = proxy.fault(creations, Fault::DropResponse, Repeat::Next(1));
    environment.wait_until_time_left(10).await;
    let (tab, job) = (Kind::CronTab, Kind::CronJob);
    let all = [
        (tab, "forbid", "Forbid"),
        (job, "lost", "Forbid"),
        (tab, "replace", "Replace"),
        (tab, "allow", "Allow"),
    ];
    let mut first = Timestamp::MIN;
    for (kind, name, concurrency) in all {
        let created = environment
            .create(kind, name, "*/10 * * * *", policy(concurrency))
            .await?;
        environment.wait_until_reconciled(kind, name).await?;
        first = first.max(next_minute(created, 10));
    }
    environment.clock.set(first);
    for (kind, name, _) in all {
        let job = kind.job_of(name, first);
        environment.wait_for_jobs(name, std::slice::from_ref(&job)).await?;
        let is_active = |status: &Value| status["active"][0]["name"] == *job;
        environment.status(kind, name, "the active Job", is_active).await?;
    }
    ensure!(lost.applied() == 1, "no answer was lost");

    // A Job that finishes and is deleted is not started again.
    let allowed = tab.job_of("allow", first);
    environment.end_job(&allowed, true).await?;
    let jobs = Jobs::of(&environment.fixture);
    jobs.0.delete(&allowed, &DeleteParams::background()).await?;
    let deadline = json!({"spec": {"startingDeadlineSeconds": 3_600}});
    environment.merge(tab, "allow", deadline).await?;
    let is_observed = |status: &Value| status["observedGeneration"] == 2;
    environment
        .status(tab, "allow", "the second generation", is_observed)
        .await?;
    ensure!(environment.jobs("allow").await?.is_empty(), "the run was repeated");

    let second = first + minutes(10);
    environment.clock.set(second);
    environment
        .wait_for_jobs("allow", &[tab.job_of("allow", second)])
        .await?;
    environment
        .wait_for_jobs("replace", &[tab.job_of("replace", second)])
        .await?;
    environment
        .wait_for_events("forbid", &["SuccessfulCreate", "JobAlreadyActive"])
        .await?;
    environment.wait_for_events("lost", &["JobAlreadyActive"]).await?;
    for (kind, name) in [(tab, "forbid"), (job, "lost")] {
        environment.wait_for_jobs(name, &[kind.job_of(name, first)]).await?;
        // The controller reads the Job, and so finds that it has finished.
        environment.end_job(&kind.job_of(name, first), true).await?;
    }
    environment.clock.set(second + VALIDITY);
    for (kind, name) in [(tab, "forbid"), (job, "lost")] {
        let both = [kind.job_of(name, first), kind.job_of(name, second)];
        environment.wait_for_jobs(name, &both).await?;
    }

    proxy.heal();
    for (kind, name, _) in all {
        let job = kind.job_of(name, second);
        environment.end_job(&job, true).await?;
        let is_idle = |status: &Value| status["active"].as_array().is_none_or(Vec::is_empty);
        environment.status(kind, name, "no active Job", is_idle).await?;
    }
    let reasons = [
        "SuccessfulCreate",
        "JobAlreadyActive",
        "SuccessfulCreate",
        "SawCompletedJob",
        "SawCompletedJob",
    ];
    environment.wait_for_events("forbid", &reasons).await?;
    environment.finish().await
}
