//! Tests of the circuit breaker (`--gc-max-deletions-per-minute`).

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, events::v1::Event};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use portreeve_testing::{Signal, eventually};
use serde_json::json;
use tokio::time::interval;

use super::{
    collector::{CONTROLLER, Collector},
    environment::{CollectorCluster, CollectorEnvironment},
    processes::{REPLICAS, replica, wait_for_leader},
    shared,
};
use crate::fixtures::{LIMIT, daemon::PROGRAM, dynamic_client::ensure_throughout};

/// The limit of deletions per minute, far less than the ownership tree needs.
const PER_MINUTE: u64 = 40;
const FLAG: &str = "--gc-max-deletions-per-minute=40";
const LEASE: &str = "portreeve";
const TRIPPED: &str = "garbage-collector.portreeve.dev/tripped";
/// How long a test checks that no deletion is sent.
const QUIET: Duration = Duration::from_secs(1);

fn leases(cluster: &CollectorCluster) -> Result<Api<Lease>> {
    Ok(Api::namespaced(cluster.plane.client()?, "kube-system"))
}

async fn is_tripped(leases: &Api<Lease>) -> Result<bool> {
    let lease = leases.get(LEASE).await?;
    Ok(lease.metadata.annotations.is_some_and(|all| all.contains_key(TRIPPED)))
}

async fn wait_until_tripped(cluster: &CollectorCluster) -> Result<()> {
    let leases = leases(cluster)?;
    eventually(LIMIT, "the breaker to trip", || async {
        ensure!(is_tripped(&leases).await?, "the Lease has no such annotation");
        anyhow::Ok(())
    })
    .await
}

/// Clears the breaker as `kubectl annotate lease portreeve
/// garbage-collector.portreeve.dev/tripped-` does.
async fn clear(leases: &Api<Lease>) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {TRIPPED: null}}}));
    leases.patch(LEASE, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Clears the breaker whenever it trips.
async fn keep_clear(cluster: &CollectorCluster) -> Result<()> {
    let leases = leases(cluster)?;
    let mut interval = interval(Duration::from_millis(200));
    loop {
        interval.tick().await;
        if is_tripped(&leases).await? {
            clear(&leases).await?;
        }
    }
}

/// Waits until the collector reports the tripped breaker in `/readyz`. The check must pass and name
/// the annotation to remove.
async fn wait_until_breaker_is_reported(collector: &Collector) -> Result<()> {
    let is_reported = |status: http::StatusCode, text: &str| {
        let mut lines = text
            .lines()
            .filter(|line| line.starts_with("[+]gc/breaker ok: tripped at "));
        status.is_success() && lines.any(|line| line.contains("remove the annotation"))
    };
    collector
        .daemon
        .admin
        .wait_until_readyz("a line about the breaker", is_reported)
        .await?;
    Ok(())
}

async fn wait_for_gauge(collector: &Collector, expected: f64) -> Result<()> {
    eventually(LIMIT, &format!("gc_breaker_tripped to be {expected}"), || async {
        let gauge = collector.daemon.admin.metrics().await?.sum("gc_breaker_tripped", &[]);
        ensure!((gauge - expected).abs() < f64::EPSILON, "{gauge}");
        anyhow::Ok(())
    })
    .await
}

/// Checks that no deletion is sent for [`QUIET`], and that the breaker stays tripped.
async fn ensure_quiet(cluster: &CollectorCluster) -> Result<()> {
    let before = cluster.deletions.matched();
    ensure_throughout(QUIET, || async {
        let now = cluster.deletions.matched();
        ensure!(now == before, "the deletions rose from {before} to {now}");
        ensure!(is_tripped(&leases(cluster)?).await?, "the annotation is gone");
        Ok(())
    })
    .await
}

fn ensure_no_deletions_since(cluster: &CollectorCluster, sent: u64) -> Result<()> {
    let now = cluster.deletions.matched();
    ensure!(
        now == sent,
        "{} deletions were sent although the breaker is tripped",
        now - sent
    );
    Ok(())
}

#[tokio::test]
async fn a_limit_without_leader_election_is_rejected() -> Result<()> {
    let plane = shared::plane().await?;
    let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
    let args = [
        &*kubeconfig,
        "--secure-port=0",
        "--leader-elect=false",
        CONTROLLER,
        FLAG,
    ];
    let process = plane.spawn("refused", Path::new(PROGRAM), &args, &[])?;
    let status = process.wait(LIMIT).await?;
    let output = process.log_tail();
    ensure!(!status.success(), "{status}{output}");
    for flag in ["--gc-max-deletions-per-minute", "--leader-elect"] {
        ensure!(output.contains(flag), "{flag} is not in {output}");
    }
    Ok(())
}

#[tokio::test]
async fn the_breaker_stays_tripped_across_restarts_until_it_is_cleared() -> Result<()> {
    let mut cluster = CollectorCluster::new("breaker").await?;
    let collector = replica(&cluster, "first", &[FLAG]).await?;
    collector.wait_until_synced().await?;
    cluster.delete_owners().await?;
    wait_until_tripped(&cluster).await?;
    wait_until_breaker_is_reported(&collector).await?;
    wait_for_gauge(&collector, 1.0).await?;
    ensure_quiet(&cluster).await?;
    let sent = cluster.deletions.matched();
    ensure!(sent <= PER_MINUTE, "{sent} deletions");
    wait_for_event(&cluster).await?;

    collector.daemon.process.signal(Signal::TERM)?;
    collector.daemon.process.wait(LIMIT).await?;
    let collector = replica(&cluster, "second", &[FLAG]).await?;
    wait_until_breaker_is_reported(&collector).await?;
    ensure_quiet(&cluster).await?;
    collector.daemon.process.signal(Signal::KILL)?;
    collector.daemon.process.wait(LIMIT).await?;
    let collector = replica(&cluster, "third", &[FLAG]).await?;
    wait_for_leader(&cluster, Some("second")).await?;
    wait_until_breaker_is_reported(&collector).await?;
    ensure_quiet(&cluster).await?;
    ensure_no_deletions_since(&cluster, sent)?;

    clear(&leases(&cluster)?).await?;
    cluster.deletions.wait_for_matched(sent + 1, LIMIT).await?;
    finish(CollectorEnvironment { collector, cluster }).await
}

#[tokio::test]
async fn the_breaker_trips_after_a_failover_and_stays_tripped_across_the_next() -> Result<()> {
    let mut cluster = CollectorCluster::new("breakers").await?;
    let mut replicas = Vec::new();
    for name in REPLICAS {
        replicas.push((name, replica(&cluster, name, &[FLAG]).await?));
    }
    let first = wait_for_leader(&cluster, None).await?;
    cluster.delete_owners().await?;
    kill(&mut replicas, &first).await?;
    let second = wait_for_leader(&cluster, Some(&first)).await?;
    wait_until_tripped(&cluster).await?;
    ensure_quiet(&cluster).await?;
    // The second leader counts its deletions from zero.
    let sent = cluster.deletions.matched();
    ensure!(sent <= 2 * PER_MINUTE, "{sent} deletions");
    kill(&mut replicas, &second).await?;
    wait_for_leader(&cluster, Some(&second)).await?;
    for (_, replica) in &replicas {
        wait_until_breaker_is_reported(replica).await?;
    }
    ensure_quiet(&cluster).await?;
    ensure_no_deletions_since(&cluster, sent)?;

    clear(&leases(&cluster)?).await?;
    cluster.deletions.wait_for_matched(sent + 1, LIMIT).await?;
    let (_, collector) = replicas.pop().context("no replica is left")?;
    finish(CollectorEnvironment { collector, cluster }).await
}

/// Kills a replica, and returns once its process has exited.
async fn kill(replicas: &mut Vec<(&'static str, Collector)>, name: &str) -> Result<()> {
    for (_, killed) in replicas.extract_if(.., |(replica_name, _)| *replica_name == name) {
        killed.daemon.process.signal(Signal::KILL)?;
        killed.daemon.process.wait(LIMIT).await?;
    }
    Ok(())
}

/// Clears the breaker whenever it trips, until the cluster has the expected state.
async fn finish(environment: CollectorEnvironment) -> Result<()> {
    let finished = tokio::select! {
        verified = environment.verify() => verified,
        failed = keep_clear(&environment.cluster) => failed,
    };
    finished?;
    clear(&leases(&environment.cluster)?).await?;
    wait_for_gauge(&environment.collector, 0.0).await
}

async fn wait_for_event(cluster: &CollectorCluster) -> Result<()> {
    let events: Api<Event> = Api::all(cluster.plane.client()?);
    eventually(LIMIT, "an event on the Lease", || async {
        let found = events.list(&ListParams::default()).await?.items;
        let is_expected = |event: &&Event| event.reason.as_deref() == Some("DeletionLimitReached");
        let event = found.iter().find(is_expected).context("no such event")?;
        let regarding = event.regarding.as_ref();
        let target = regarding.and_then(|regarding| Some((regarding.kind.as_deref()?, regarding.name.as_deref()?)));
        ensure!(target == Some(("Lease", LEASE)), "{event:?}");
        Ok(())
    })
    .await
}
