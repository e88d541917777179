//! Faults between a decision and the apiserver, and Jobs that expire while no daemon runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use kube::api::DeleteParams;
use portreeve_testing::{CannedResponse, Matcher, Repeat, eventually};
use serde_json::json;

use super::environment::{TtlEnvironment, seconds};
use crate::{
    faults::{
        admission::{reject_job_deletions, stop_rejecting},
        servers::{ServerFault, during_outage},
    },
    fixtures::{LIMIT, jobs::Jobs},
};

/// The delay of all data between the daemon and the apiserver, in tests that need a stale cache.
const DELAY: Duration = Duration::from_secs(2);

fn deletions() -> Matcher {
    Matcher::any().method("DELETE").resource("jobs")
}

#[tokio::test]
async fn jobs_that_expired_without_a_daemon_are_deleted_when_one_starts() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let finished = environment.finish_job("due", 600).await?;
    environment.finish_job("later", 1_800).await?;
    environment.catch_up().await?;
    environment = environment
        .restart_after(async |jobs: &Jobs, clock| {
            jobs.create("ended-meanwhile", json!({"ttlSecondsAfterFinished": 60}))
                .await?;
            jobs.end("ended-meanwhile", finished, true).await?;
            clock.set(finished + seconds(700));
            Ok(())
        })
        .await?;
    for name in ["due", "ended-meanwhile"] {
        environment.jobs.wait_until_deleted(name).await?;
    }
    environment.catch_up().await?;
    environment.jobs.ensure_kept(&["later"]).await?;
    environment.advance(finished + seconds(1_800)).await?;
    environment.jobs.wait_until_deleted("later").await?;
    environment.finish().await
}

#[tokio::test]
async fn a_job_whose_ttl_was_extended_behind_a_stale_cache_is_kept() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let finished = environment.finish_job("prolonged", 600).await?;
    environment.finish_job("replaced", 1_200).await?;
    let requeues = &[r#"controller="ttl-after-finished-controller""#, r#"result="requeue""#];
    for (number, name) in ["prolonged", "replaced"].into_iter().enumerate() {
        environment.catch_up().await?;
        let sent = environment.proxy.count(deletions().name(name));
        environment.proxy.slow(DELAY);
        if name == "prolonged" {
            environment.jobs.set_ttl(name, 6_000).await?;
        } else {
            environment.jobs.0.delete(name, &DeleteParams::background()).await?;
            environment
                .jobs
                .create(name, json!({"ttlSecondsAfterFinished": 1_200}))
                .await?;
        }
        // The controller decides on the stale Job, and the apiserver rejects the deletion.
        environment.clock.set(finished + seconds([700, 1_300][number]));
        sent.wait_for_matched(1, LIMIT).await?;
        environment.proxy.heal();
        eventually(LIMIT, "a requeue after the conflict", || async {
            let metrics = environment.daemon.admin.metrics().await?;
            let found = metrics.sum("controller_runtime_reconcile_total", requeues);
            ensure!(found >= [1.0, 2.0][number], "{found}");
            anyhow::Ok(())
        })
        .await?;
    }
    environment.catch_up().await?;
    environment.jobs.ensure_kept(&["prolonged", "replaced"]).await?;
    environment.advance(finished + seconds(6_000)).await?;
    environment.jobs.wait_until_deleted("prolonged").await?;
    environment.jobs.ensure_kept(&["replaced"]).await?;
    environment.finish().await
}

#[tokio::test]
async fn deletions_are_retried_after_apiserver_errors() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let mut expected = 0.0;
    for (name, response) in [
        ("busy", CannedResponse::too_many_requests(1)),
        ("broken", CannedResponse::unavailable()),
        ("behind", CannedResponse::conflict()),
        (
            "failing",
            CannedResponse::status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "a test"),
        ),
    ] {
        let faults = environment
            .proxy
            .respond(deletions().name(name), response, Repeat::Next(2));
        environment.finish_job(name, 0).await?;
        environment.jobs.wait_until_deleted(name).await?;
        ensure!(faults.applied() == 2, "{name}: {}", faults.applied());
        expected += 1.0;
    }
    // The metric counts each deletion once, not each attempt.
    let lag = "ttl_after_finished_controller_job_deletion_duration_seconds_count";
    environment.daemon.wait_for_metric(lag, &[], expected).await?;
    environment.catch_up().await?;
    environment.finish().await
}

#[tokio::test]
async fn a_watch_cut_before_a_compaction_misses_no_finished_job() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let finished = environment.finish_job("waiting", 600).await?;
    environment.catch_up().await?;
    environment.proxy.cut();
    environment.jobs.set_ttl("waiting", 1_200).await?;
    environment.finish_job("unheard", 60).await?;
    environment.clock.set(finished + seconds(700));
    ServerFault::Compaction.inject(&environment.plane).await?;
    environment.proxy.heal();
    let gets = environment.proxy.count(Matcher::any().method("GET").resource("jobs"));
    let watched = environment.proxy.count(Matcher::watches().resource("jobs"));
    environment.jobs.wait_until_deleted("unheard").await?;
    ensure!(gets.matched() > watched.matched(), "the informer did not list");
    environment.catch_up().await?;
    environment.jobs.ensure_kept(&["waiting"]).await?;
    environment.advance(finished + seconds(1_200)).await?;
    environment.jobs.wait_until_deleted("waiting").await?;
    // The restarted apiserver may have rejected some requests, and `finish` would fail.
    environment.daemon.stop().await
}

#[tokio::test]
async fn a_job_that_expires_during_an_outage_is_deleted_after_it() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let finished = environment.finish_job("due", 600).await?;
    environment.finish_job("later", 6_000).await?;
    environment.catch_up().await?;
    during_outage(&environment.plane, || environment.clock.set(finished + seconds(600))).await?;
    environment.jobs.wait_until_deleted("due").await?;
    environment.jobs.ensure_kept(&["later"]).await?;
    // The apiserver serves requests before its authorizer is ready, so it may have rejected some,
    // and `finish` would fail.
    environment.daemon.stop().await
}

#[tokio::test]
async fn a_rejected_deletion_is_reported_once_and_succeeds_when_allowed() -> Result<()> {
    let environment = TtlEnvironment::start().await?;
    reject_job_deletions(&environment.fixture).await?;
    environment.finish_job("refused", 0).await?;
    let events = environment
        .fixture
        .wait_for_events("refused", &["FailedDelete"])
        .await?;
    let note = events[0].note.clone().unwrap_or_default();
    ensure!(note.contains("Jobs are kept"), "{note}");
    environment
        .jobs
        .merge("refused", json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    stop_rejecting(&environment.fixture).await?;
    environment.jobs.wait_until_deleted("refused").await?;
    environment
        .fixture
        .wait_for_events("refused", &["FailedDelete"])
        .await?;
    environment.daemon.stop().await
}
