//! What becomes of Jobs, by a clock that the test sets.

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use portreeve_reconcile::Clock;
use portreeve_testing::Matcher;
use serde_json::{Value, json};

use super::stage::{Stage, seconds};

const LAG: &str = "ttl_after_finished_controller_job_deletion_duration_seconds";

#[tokio::test]
async fn a_finished_job_is_kept_for_its_ttl_and_then_deleted() -> Result<()> {
    let mut stage = Stage::start().await?;
    let at_once = stage.finished("at-once", 0).await?;
    stage.jobs.wait_until_deleted("at-once").await?;
    ensure!(stage.clock.now() >= at_once);

    let finished = stage.finished("complete", 3_600).await?;
    let failed = json!({"ttlSecondsAfterFinished": 3_600});
    stage.jobs.create("failed", failed).await?;
    stage.jobs.end("failed", finished, false).await?;
    stage.finished("longer", 7_200).await?;
    stage.catch_up().await?;
    stage.jobs.ensure_kept(&["complete", "failed", "longer"]).await?;
    stage.advance(finished + seconds(3_600 - 60)).await?;
    stage.jobs.ensure_kept(&["complete", "failed", "longer"]).await?;
    stage.advance(finished + seconds(3_600)).await?;
    for name in ["complete", "failed"] {
        stage.jobs.wait_until_deleted(name).await?;
    }
    stage.jobs.ensure_kept(&["longer"]).await?;

    let deletions = f64::from(3 + stage.witnesses);
    stage
        .daemon
        .wait_for_metric(&format!("{LAG}_count"), &[], deletions)
        .await?;
    let metrics = stage.daemon.admin.metrics().await?;
    let adds = metrics.sum("workqueue_adds_total", &[r#"name="ttl_jobs_to_delete""#]);
    ensure!(adds > 0.0, "the queue has another name");
    stage.finish().await
}

#[tokio::test]
async fn what_has_no_ttl_or_has_not_finished_is_left_alone() -> Result<()> {
    let mut stage = Stage::start().await?;
    let ttl = |more: Value| {
        let mut spec = json!({"ttlSecondsAfterFinished": 0});
        spec.as_object_mut()
            .into_iter()
            .for_each(|spec| spec.extend(more.as_object().cloned().unwrap_or_default()));
        spec
    };
    stage.finished("without", Value::Null).await?;
    stage.jobs.create("unfinished", ttl(json!({}))).await?;
    stage.jobs.create("suspended", ttl(json!({"suspend": true}))).await?;
    let time = format!("{:.0}", stage.clock.now());
    for (name, type_) in [("unfinished", "SuccessCriteriaMet"), ("suspended", "Suspended")] {
        let condition = json!({"type": type_, "status": "True", "lastTransitionTime": time, "lastProbeTime": time});
        stage.jobs.set_status(name, json!({"conditions": [condition]})).await?;
    }
    let now = stage.clock.now();
    stage.advance(now + seconds(365 * 86_400)).await?;
    stage.jobs.ensure_kept(&["without", "unfinished", "suspended"]).await?;
    stage.finish().await
}

#[tokio::test]
async fn a_ttl_that_is_changed_removed_or_added_late_counts_from_the_finish() -> Result<()> {
    let mut stage = Stage::start().await?;
    let finished = stage.finished("longer", 600).await?;
    stage.finished("shorter", 7_200).await?;
    stage.finished("removed", 600).await?;
    stage.finished("added", Value::Null).await?;
    stage.finished("overdue", Value::Null).await?;
    stage.catch_up().await?;
    stage.jobs.set_ttl("longer", 1_800).await?;
    stage.jobs.set_ttl("shorter", 900).await?;
    stage.jobs.set_ttl("removed", Value::Null).await?;
    stage.jobs.set_ttl("added", 1_200).await?;
    let kept = |stage: &Stage, names: &'static [&str]| {
        let jobs = stage.jobs.clone();
        async move { jobs.ensure_kept(names).await }
    };

    stage.advance(finished + seconds(700)).await?;
    kept(&stage, &["longer", "shorter", "removed", "added", "overdue"]).await?;
    // Its time has come before it had one.
    stage.jobs.set_ttl("overdue", 60).await?;
    stage.jobs.wait_until_deleted("overdue").await?;
    stage.advance(finished + seconds(910)).await?;
    stage.jobs.wait_until_deleted("shorter").await?;
    kept(&stage, &["longer", "removed", "added"]).await?;
    stage.advance(finished + seconds(1_210)).await?;
    stage.jobs.wait_until_deleted("added").await?;
    kept(&stage, &["longer", "removed"]).await?;
    stage.advance(finished + seconds(1_810)).await?;
    stage.jobs.wait_until_deleted("longer").await?;
    stage.advance(finished + seconds(365 * 86_400)).await?;
    kept(&stage, &["removed"]).await?;
    stage.finish().await
}

#[tokio::test]
async fn a_job_that_somebody_deletes_is_left_to_that() -> Result<()> {
    let mut stage = Stage::start().await?;
    let spec = json!({"ttlSecondsAfterFinished": 60});
    stage.jobs.create_with("going", spec, &["example.com/a-test"]).await?;
    let finished = stage.clock.now();
    stage.jobs.end("going", finished, true).await?;
    let deletions = stage.proxy.count(Matcher::any().method("DELETE").name("going"));
    stage.jobs.0.delete("going", &DeleteParams::background()).await?;
    let before = stage.jobs.0.get("going").await?;
    stage.advance(finished + seconds(3_600)).await?;
    stage
        .jobs
        .merge("going", json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    stage.catch_up().await?;
    ensure!(deletions.seen() == 0, "it was deleted {} times more", deletions.seen());
    let after = stage.jobs.0.get("going").await?;
    let finalizers = after.metadata.finalizers.context("it has one")?;
    ensure!(finalizers == ["example.com/a-test"], "{finalizers:?}");
    ensure!(after.metadata.deletion_timestamp == before.metadata.deletion_timestamp);
    stage.finish().await
}

/// Its clock, and not its Job, is at fault; a Job that is of the future in one second is of the past in the next.
#[tokio::test]
async fn a_job_that_finished_in_the_future_is_told_of_once_and_waited_for() -> Result<()> {
    let mut stage = Stage::start().await?;
    let future = stage.clock.now() + seconds(7_200);
    stage
        .jobs
        .create("early", json!({"ttlSecondsAfterFinished": 60}))
        .await?;
    stage.jobs.end("early", future, true).await?;
    let told = stage.scene.wait_for_events("early", &["ClockSkew"]).await?;
    let note = told[0].note.clone().unwrap_or_default();
    let kept_until = format!("It is kept until {:.0}", future + seconds(60));
    ensure!(
        note.starts_with("The Job finished at") && note.ends_with(&kept_until),
        "{note}"
    );
    ensure!(told[0].type_.as_deref() == Some("Warning"), "{told:?}");
    stage
        .jobs
        .merge("early", json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    stage.advance(future).await?;
    stage.jobs.ensure_kept(&["early"]).await?;
    // And back: what waited for a minute waits for an hour more.
    stage.clock.set(future - seconds(3_600));
    stage.catch_up().await?;
    stage.jobs.ensure_kept(&["early"]).await?;
    stage.advance(future + seconds(61)).await?;
    stage.jobs.wait_until_deleted("early").await?;
    stage.scene.wait_for_events("early", &["ClockSkew"]).await?;
    stage.finish().await
}
