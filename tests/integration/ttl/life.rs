//! What becomes of Jobs, by a clock that the test sets.

use anyhow::{Context, Result, ensure};
use kube::api::DeleteParams;
use portreeve_reconcile::Clock;
use portreeve_testing::Matcher;
use serde_json::{Value, json};

use super::fixtures::{TtlEnvironment, seconds};

const LAG: &str = "ttl_after_finished_controller_job_deletion_duration_seconds";

#[tokio::test]
async fn a_finished_job_is_kept_for_its_ttl_and_then_deleted() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let at_once = environment.finished("at-once", 0).await?;
    environment.jobs.wait_until_deleted("at-once").await?;
    ensure!(environment.clock.now() >= at_once);

    let finished = environment.finished("complete", 3_600).await?;
    let failed = json!({"ttlSecondsAfterFinished": 3_600});
    environment.jobs.create("failed", failed).await?;
    environment.jobs.end("failed", finished, false).await?;
    environment.finished("longer", 7_200).await?;
    environment.catch_up().await?;
    environment.jobs.ensure_kept(&["complete", "failed", "longer"]).await?;
    environment.advance(finished + seconds(3_600 - 60)).await?;
    environment.jobs.ensure_kept(&["complete", "failed", "longer"]).await?;
    environment.advance(finished + seconds(3_600)).await?;
    for name in ["complete", "failed"] {
        environment.jobs.wait_until_deleted(name).await?;
    }
    environment.jobs.ensure_kept(&["longer"]).await?;

    let deletions = f64::from(3 + environment.witnesses);
    environment
        .daemon
        .wait_for_metric(&format!("{LAG}_count"), &[], deletions)
        .await?;
    let metrics = environment.daemon.admin.metrics().await?;
    let adds = metrics.sum("workqueue_adds_total", &[r#"name="ttl_jobs_to_delete""#]);
    ensure!(adds > 0.0, "the queue has another name");
    environment.finish().await
}

#[tokio::test]
async fn what_has_no_ttl_or_has_not_finished_is_left_alone() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let ttl = |more: Value| {
        let mut spec = json!({"ttlSecondsAfterFinished": 0});
        spec.as_object_mut()
            .into_iter()
            .for_each(|spec| spec.extend(more.as_object().cloned().unwrap_or_default()));
        spec
    };
    environment.finished("without", Value::Null).await?;
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
async fn a_ttl_that_is_changed_removed_or_added_late_counts_from_the_finish() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let finished = environment.finished("longer", 600).await?;
    environment.finished("shorter", 7_200).await?;
    environment.finished("removed", 600).await?;
    environment.finished("added", Value::Null).await?;
    environment.finished("overdue", Value::Null).await?;
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
    // Its time has come before it had one.
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
async fn a_job_that_somebody_deletes_is_left_to_that() -> Result<()> {
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
        "it was deleted {} times more",
        deletions.matched()
    );
    let after = environment.jobs.0.get("going").await?;
    let finalizers = after.metadata.finalizers.context("it has one")?;
    ensure!(finalizers == ["example.com/a-test"], "{finalizers:?}");
    ensure!(after.metadata.deletion_timestamp == before.metadata.deletion_timestamp);
    environment.finish().await
}

/// Its clock, and not its Job, is at fault; a Job that is of the future in one second is of the past in the next.
#[tokio::test]
async fn a_job_that_finished_in_the_future_is_told_of_once_and_waited_for() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let future = environment.clock.now() + seconds(7_200);
    environment
        .jobs
        .create("early", json!({"ttlSecondsAfterFinished": 60}))
        .await?;
    environment.jobs.end("early", future, true).await?;
    let told = environment.fixture.wait_for_events("early", &["ClockSkew"]).await?;
    let note = told[0].note.clone().unwrap_or_default();
    let kept_until = format!("It is kept until {:.0}", future + seconds(60));
    ensure!(
        note.starts_with("The Job finished at") && note.ends_with(&kept_until),
        "{note}"
    );
    ensure!(told[0].type_.as_deref() == Some("Warning"), "{told:?}");
    environment
        .jobs
        .merge("early", json!({"metadata": {"labels": {"look": "again"}}}))
        .await?;
    environment.advance(future).await?;
    environment.jobs.ensure_kept(&["early"]).await?;
    // And back: what waited for a minute waits for an hour more.
    environment.clock.set(future - seconds(3_600));
    environment.catch_up().await?;
    environment.jobs.ensure_kept(&["early"]).await?;
    environment.advance(future + seconds(61)).await?;
    environment.jobs.wait_until_deleted("early").await?;
    environment.fixture.wait_for_events("early", &["ClockSkew"]).await?;
    environment.finish().await
}
