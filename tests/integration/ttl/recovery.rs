//! Changes that the cache of the controller shows late.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::DeleteParams;
use portreeve_testing::{Matcher, eventually};
use serde_json::json;

use super::environment::{TtlEnvironment, seconds};
use crate::{faults::servers::ServerFault, fixtures::LIMIT};

/// The delay of all data between the daemon and the apiserver, in tests that need a stale cache.
const DELAY: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_job_whose_ttl_was_extended_behind_a_stale_cache_is_kept() -> Result<()> {
    let mut environment = TtlEnvironment::start().await?;
    let finished = environment.finish_job("prolonged", 600).await?;
    environment.finish_job("replaced", 1_200).await?;
    let requeues = &[r#"controller="ttl-after-finished-controller""#, r#"result="requeue""#];
    for (number, name) in ["prolonged", "replaced"].into_iter().enumerate() {
        environment.catch_up().await?;
        let deletions = Matcher::any().method("DELETE").resource("jobs");
        let sent = environment.proxy.count(deletions.name(name));
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
