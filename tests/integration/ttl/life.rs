//! The deletion of finished Jobs after their TTL, with a clock that the test sets.

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use portreeve_reconcile::Clock;
use portreeve_testing::Matcher;
use serde_json::{Value, json};

use super::environment::{TtlEnvironment, seconds};

const LAG: &str = "ttl_after_finished_controller_job_deletion_duration_seconds";

#[tokio::test]
async fn a_finished_job_is_kept_for_its_ttl_and_then_deleted() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let at_once = environment.finish_job("at-once", 0).await?;
    environment.jobs.wait_until_deleted("at-once").await?;
    ensure!(environment.clock.now() >= at_once);

    let finished = environment.finish_job("complete", 3_600).await?;
    let failed = json!({"ttlSecondsAfterFinished": 3_600});
    environment.jobs.create("failed", failed).await?;
    environment.jobs.end("failed", finished, false).await?;
    environment.finish_job("longer", 7_200).await?;
    environment.catch_up().await?;
    environment.jobs.ensure_kept(&["complete", "failed", "longer"]).await?;
    environment.advance(finished + seconds(3_600 - 60)).await?;
    environment.jobs.ensure_kept(&["complete", "failed", "longer"]).await?;
    environment.advance(finished + seconds(3_600)).await?;
    for name in ["complete", "failed"] {
        environment.jobs.wait_until_deleted(name).await?;
    }
    environment.jobs.ensure_kept(&["longer"]).await?;

    let deletions = f64::from(3 + environment.canaries);
    environment
        .daemon
        .wait_for_metric(&format!("{LAG}_count"), &[], deletions)
        .await?;
    let metrics = environment.daemon.admin.metrics().await?;
    let adds = metrics.sum("workqueue_adds_total", &[r#"name="ttl_jobs_to_delete""#]);
    ensure!(adds > 0.0, "no queue is named ttl_jobs_to_delete");
    environment.finish().await
}

#[tokio::test]
async fn jobs_without_a_ttl_and_unfinished_jobs_are_kept() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let ttl = |more: Value| {
        let mut spec = json!({"ttlSecondsAfterFinished": 0});
        spec.as_object_mut()
            .into_iter()
            .for_each(|spec| spec.extend(more.as_object().cloned().unwrap_or_default()));
        spec
    };
    environment.finish_job("without", Value::Null).await?;
    environment.jobs.create("unfinished", ttl(json!({}))).await?;
    environment
        .jobs
        .create("suspended", ttl(json!({"suspend": true})))
        .await?;
    let time = format!("{:.0}", environment.clock.now());
    for (name, type_) in [("unfinished", "SuccessCriteriaMet"), ("suspended", "Suspended")] {
        let condition = json!({"type": type_, "status": "True", "lastTransitionTime": time, "lastProbeTime": time});
        environment
            .jobs
            .set_status(name, json!({"conditions": [condition]}))
            .await?;
    }
    let now = environment.clock.now();
    environment.advance(now + seconds(365 * 86_400)).await?;
    environment
        .jobs
        .ensure_kept(&["without", "unfinished", "suspended"])
        .await?;
    environment.finish().await
}

#[tokio::test]
async fn a_changed_ttl_counts_from_the_finish_time() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let finished = environment.finish_job("longer", 600).await?;
    environment.finish_job("shorter", 7_200).await?;
    environment.finish_job("removed", 600).await?;
    environment.finish_job("added", Value::Null).await?;
    environment.finish_job("overdue", Value::Null).await?;
    environment.catch_up().await?;
    environment.jobs.set_ttl("longer", 1_800).await?;
    environment.jobs.set_ttl("shorter", 900).await?;
    environment.jobs.set_ttl("removed", Value::Null).await?;
    environment.jobs.set_ttl("added", 1_200).await?;
    let kept = |environment: &TtlEnvironment, names: &'static [&str]| {
        let jobs = environment.jobs.clone();
        async move { jobs.ensure_kept(names).await }
    };

    environment.advance(finished + seconds(700)).await?;
    kept(&environment, &["longer", "shorter", "removed", "added", "overdue"]).await?;
    // With the new TTL, the Job has already expired.
    environment.jobs.set_ttl("overdue", 60).await?;
    environment.jobs.wait_until_deleted("overdue").await?;
    environment.advance(finished + seconds(910)).await?;
    environment.jobs.wait_until_deleted("shorter").await?;
    kept(&environment, &["longer", "removed", "added"]).await?;
    environment.advance(finished + seconds(1_210)).await?;
    environment.jobs.wait_until_deleted("added").await?;
    kept(&environment, &["longer", "removed"]).await?;
    environment.advance(finished + seconds(1_810)).await?;
    environment.jobs.wait_until_deleted("longer").await?;
    environment.advance(finished + seconds(365 * 86_400)).await?;
    kept(&environment, &["removed"]).await?;
    environment.finish().await
}

#[tokio::test]
async fn a_job_that_is_being_deleted_is_not_deleted_again() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let spec = json!({"ttlSecondsAfterFinished": 60});
    environment
        .jobs
        .create_with("going", spec, &["example.com/a-test"])
        .await?;
    let finished = environment.clock.now();
    environment.jobs.end("going", finished, true).await?;
    let deletions = environment.proxy.count(Matcher::any().method("DELETE").name("going"));
    environment.jobs.0.delete("going", &DeleteParams::background()).await?;
    let before = environment.jobs.0.get("going").await?;
    environment.advance(finished + seconds(3_600)).await?;
    environment
        .jobs
        .merge("going", json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    environment.catch_up().await?;
    ensure!(
        deletions.matched() == 0,
        "the controller sent {} more deletions",
        deletions.matched()
    );
    let after = environment.jobs.0.get("going").await?;
    let finalizers = after.metadata.finalizers.context("the Job has no finalizers")?;
    ensure!(finalizers == ["example.com/a-test"], "{finalizers:?}");
    ensure!(after.metadata.deletion_timestamp == before.metadata.deletion_timestamp);
    environment.finish().await
}

/// The finish time may be later than the daemon's clock. The event contains the time until which
/// the Job is kept.
#[tokio::test]
async fn a_job_with_a_future_finish_time_is_reported_once_and_kept() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let future = environment.clock.now() + seconds(7_200);
    environment
        .jobs
        .create("early", json!({"ttlSecondsAfterFinished": 60}))
        .await?;
    environment.jobs.end("early", future, true).await?;
    let events = environment.fixture.wait_for_events("early", &["ClockSkew"]).await?;
    let note = events[0].note.clone().unwrap_or_default();
    let kept_until = format!("The Job is kept until {:.0}", future + seconds(60));
    ensure!(
        note.starts_with("The Job finished at") && note.ends_with(&kept_until),
        "{note}"
    );
    ensure!(events[0].type_.as_deref() == Some("Warning"), "{events:?}");
    environment
        .jobs
        .merge("early", json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    environment.advance(future).await?;
    environment.jobs.ensure_kept(&["early"]).await?;
    // After the clock is set back, the Job expires an hour later.
    environment.clock.set(future - seconds(3_600));
    environment.catch_up().await?;
    environment.jobs.ensure_kept(&["early"]).await?;
    environment.advance(future + seconds(61)).await?;
    environment.jobs.wait_until_deleted("early").await?;
    environment.fixture.wait_for_events("early", &["ClockSkew"]).await?;
    environment.finish().await
}
