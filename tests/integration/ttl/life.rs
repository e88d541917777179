//! The deletion of finished Jobs after their TTL, with a clock that the test sets.

use anyhow::{Result, ensure};
use portreeve_reconcile::Clock;
use serde_json::{Value, json};

use super::environment::{TtlEnvironment, seconds};

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
