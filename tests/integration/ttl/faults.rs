//! What goes wrong between a decision and the apiserver, and while nobody looks.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use kube::{
    Api,
    api::{DeleteParams, DynamicObject},
    core::{ApiResource, GroupVersionKind},
};
use portreeve_testing::{Canned, Matcher, Times, eventually};
use serde_json::json;

use super::stage::{Jobs, Stage, seconds};
use crate::{schedules::faults::refuse_deletions, support::LIMIT};

/// How late the daemon hears and is heard, where it matters.
const LATE: Duration = Duration::from_secs(2);

fn deletions() -> Matcher {
    Matcher::any().method("DELETE").resource("jobs")
}

#[tokio::test]
async fn what_expired_while_no_daemon_ran_goes_when_one_does() -> Result<()> {
    let mut stage = Stage::start().await?;
    let finished = stage.finished("due", 600).await?;
    stage.finished("later", 1_800).await?;
    stage.catch_up().await?;
    stage = stage
        .restart_after(async |jobs: &Jobs, clock| {
            jobs.create("ended-meanwhile", json!({"ttlSecondsAfterFinished": 60}))
                .await?;
            jobs.end("ended-meanwhile", finished, true).await?;
            clock.set(finished + seconds(700));
            Ok(())
        })
        .await?;
    for name in ["due", "ended-meanwhile"] {
        stage.jobs.wait_until_deleted(name).await?;
    }
    stage.catch_up().await?;
    stage.jobs.ensure_kept(&["later"]).await?;
    stage.advance(finished + seconds(1_800)).await?;
    stage.jobs.wait_until_deleted("later").await?;
    stage.finish().await
}

#[tokio::test]
async fn a_job_that_got_more_time_before_the_watch_told_is_kept_for_it() -> Result<()> {
    let mut stage = Stage::start().await?;
    let finished = stage.finished("prolonged", 600).await?;
    stage.finished("replaced", 1_200).await?;
    let requeues = &[r#"controller="ttl-after-finished-controller""#, r#"result="requeue""#];
    for (number, name) in ["prolonged", "replaced"].into_iter().enumerate() {
        stage.catch_up().await?;
        let sent = stage.proxy.count(deletions().name(name));
        stage.proxy.slow(LATE);
        if name == "prolonged" {
            stage.jobs.set_ttl(name, 6_000).await?;
        } else {
            stage.jobs.0.delete(name, &DeleteParams::background()).await?;
            stage
                .jobs
                .create(name, json!({"ttlSecondsAfterFinished": 1_200}))
                .await?;
        }
        // It is decided on what was, and the deletion is refused.
        stage.clock.set(finished + seconds([700, 1_300][number]));
        sent.until_seen(1, LIMIT).await?;
        stage.proxy.heal();
        eventually(LIMIT, "another look", || async {
            let metrics = stage.daemon.admin.metrics().await?;
            let found = metrics.sum("controller_runtime_reconcile_total", requeues);
            ensure!(found >= [1.0, 2.0][number], "{found}");
            anyhow::Ok(())
        })
        .await?;
    }
    stage.catch_up().await?;
    stage.jobs.ensure_kept(&["prolonged", "replaced"]).await?;
    stage.advance(finished + seconds(6_000)).await?;
    stage.jobs.wait_until_deleted("prolonged").await?;
    stage.jobs.ensure_kept(&["replaced"]).await?;
    stage.finish().await
}

#[tokio::test]
async fn an_apiserver_that_is_busy_or_broken_is_asked_again() -> Result<()> {
    let mut stage = Stage::start().await?;
    let mut expected = 0.0;
    for (name, answer) in [
        ("busy", Canned::too_many_requests(1)),
        ("broken", Canned::unavailable()),
        ("behind", Canned::conflict()),
        (
            "failing",
            Canned::status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "a test"),
        ),
    ] {
        let answered = stage.proxy.answer(deletions().name(name), answer, Times::Next(2));
        stage.finished(name, 0).await?;
        stage.jobs.wait_until_deleted(name).await?;
        ensure!(answered.answered() == 2, "{name}: {}", answered.answered());
        expected += 1.0;
    }
    // Each once, and not each try.
    let lag = "ttl_after_finished_controller_job_deletion_duration_seconds_count";
    stage.daemon.wait_for_metric(lag, &[], expected).await?;
    stage.catch_up().await?;
    stage.finish().await
}

#[tokio::test]
async fn a_watch_that_was_cut_and_compacted_misses_no_finish() -> Result<()> {
    let mut stage = Stage::start().await?;
    let finished = stage.finished("waiting", 600).await?;
    stage.catch_up().await?;
    stage.proxy.cut();
    stage.jobs.set_ttl("waiting", 1_200).await?;
    stage.finished("unheard", 60).await?;
    stage.clock.set(finished + seconds(700));
    // etcd forgets the past, and with a restart the apiserver's cache does too: a 410, and everything is listed anew.
    stage.plane.compact().await?;
    stage.plane.apiserver().restart().await?;
    stage.proxy.heal();
    let asked = stage.proxy.count(Matcher::any().method("GET").resource("jobs"));
    let watched = stage.proxy.count(Matcher::watches().resource("jobs"));
    stage.jobs.wait_until_deleted("unheard").await?;
    ensure!(asked.seen() > watched.seen(), "nothing was listed");
    stage.catch_up().await?;
    stage.jobs.ensure_kept(&["waiting"]).await?;
    stage.advance(finished + seconds(1_200)).await?;
    stage.jobs.wait_until_deleted("waiting").await?;
    // As below.
    stage.daemon.stop().await
}

#[tokio::test]
async fn an_apiserver_that_is_away_when_a_job_expires_is_asked_when_it_is_back() -> Result<()> {
    let mut stage = Stage::start().await?;
    let finished = stage.finished("due", 600).await?;
    stage.finished("later", 6_000).await?;
    stage.catch_up().await?;
    stage.plane.apiserver().stop().await?;
    stage.clock.set(finished + seconds(600));
    stage.plane.apiserver().start().await?;
    stage.jobs.wait_until_deleted("due").await?;
    stage.jobs.ensure_kept(&["later"]).await?;
    // It is served before its authorizer is ready, so some requests may have been refused.
    stage.daemon.stop().await
}

#[tokio::test]
async fn a_deletion_that_is_refused_is_told_of_once_and_done_when_it_may_be() -> Result<()> {
    let stage = Stage::start().await?;
    refuse_deletions(&stage.scene).await?;
    stage.finished("refused", 0).await?;
    let told = stage.scene.wait_for_events("refused", &["FailedDelete"]).await?;
    let note = told[0].note.clone().unwrap_or_default();
    ensure!(note.contains("Jobs are kept"), "{note}");
    stage
        .jobs
        .merge("refused", json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    let binding = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding");
    let client = stage.scene.namespace.client().clone();
    let bindings: Api<DynamicObject> = Api::all_with(client, &ApiResource::from_gvk(&binding));
    bindings.delete("keep-jobs", &DeleteParams::default()).await?;
    stage.jobs.wait_until_deleted("refused").await?;
    stage.scene.wait_for_events("refused", &["FailedDelete"]).await?;
    stage.daemon.stop().await
}
