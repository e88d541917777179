//! The breaker: `--gc-max-deletions-per-minute`.

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
    processes::{REPLICAS, replica, wait_for_leader},
    shared,
    stage::{Scenery, Stage},
    yard::stays,
};
use crate::support::{LIMIT, daemon::PROGRAM};

/// Far fewer than the estate needs.
const PER_MINUTE: u64 = 40;
const FLAG: &str = "--gc-max-deletions-per-minute=40";
const LEASE: &str = "portreeve";
const TRIPPED: &str = "garbage-collector.portreeve.dev/tripped";
/// That nothing is deleted is looked at for so long.
const QUIET: Duration = Duration::from_secs(1);

fn leases(scenery: &Scenery) -> Result<Api<Lease>> {
    Ok(Api::namespaced(scenery.plane.client()?, "kube-system"))
}

async fn is_tripped(leases: &Api<Lease>) -> Result<bool> {
    let lease = leases.get(LEASE).await?;
    Ok(lease.metadata.annotations.is_some_and(|all| all.contains_key(TRIPPED)))
}

async fn wait_until_tripped(scenery: &Scenery) -> Result<()> {
    let leases = leases(scenery)?;
    eventually(LIMIT, "the breaker to trip", || async {
        ensure!(is_tripped(&leases).await?, "the Lease has no such annotation");
        anyhow::Ok(())
    })
    .await
}

/// As `kubectl annotate lease portreeve garbage-collector.portreeve.dev/tripped-`.
async fn clear(leases: &Api<Lease>) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {TRIPPED: null}}}));
    leases.patch(LEASE, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Clears the breaker as often as it trips.
async fn keep_clear(scenery: &Scenery) -> Result<()> {
    let leases = leases(scenery)?;
    let mut interval = interval(Duration::from_millis(200));
    loop {
        interval.tick().await;
        if is_tripped(&leases).await? {
            clear(&leases).await?;
        }
    }
}

/// Waits until a collector knows that the breaker is tripped. It is ready all the same, and says how to go on.
async fn wait_until_it_says_so(collector: &Collector) -> Result<()> {
    let says_so = |status: http::StatusCode, text: &str| {
        let mut lines = text
            .lines()
            .filter(|line| line.starts_with("[+]gc/breaker ok: tripped at "));
        status.is_success() && lines.any(|line| line.contains("remove the annotation"))
    };
    collector
        .daemon
        .admin
        .wait_until_readyz("a line about the breaker", says_so)
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

/// Nothing is deleted any more.
async fn ensure_quiet(scenery: &Scenery) -> Result<()> {
    let before = scenery.deletions.seen();
    stays(QUIET, || async {
        let now = scenery.deletions.seen();
        ensure!(now == before, "{before} deletions, and then {now}");
        ensure!(is_tripped(&leases(scenery)?).await?, "the annotation is gone");
        Ok(())
    })
    .await
}

fn ensure_none_since(scenery: &Scenery, sent: u64) -> Result<()> {
    let now = scenery.deletions.seen();
    ensure!(now == sent, "{} deletions were sent since", now - sent);
    Ok(())
}

#[tokio::test]
async fn a_limit_without_leader_election_is_refused() -> Result<()> {
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
    let said = process.log_tail();
    ensure!(!status.success(), "{status}{said}");
    for flag in ["--gc-max-deletions-per-minute", "--leader-elect"] {
        ensure!(said.contains(flag), "{flag} is not in {said}");
    }
    Ok(())
}

#[tokio::test]
async fn the_breaker_stays_tripped_over_restarts_until_somebody_clears_it() -> Result<()> {
    let mut scenery = Scenery::new("breaker").await?;
    let collector = replica(&scenery, "first", &[FLAG]).await?;
    collector.wait_until_synced().await?;
    scenery.bring_down().await?;
    wait_until_tripped(&scenery).await?;
    wait_until_it_says_so(&collector).await?;
    wait_for_gauge(&collector, 1.0).await?;
    ensure_quiet(&scenery).await?;
    let sent = scenery.deletions.seen();
    ensure!(sent <= PER_MINUTE, "{sent} deletions");
    wait_for_event(&scenery).await?;

    collector.daemon.process.signal(Signal::TERM)?;
    collector.daemon.process.wait(LIMIT).await?;
    let collector = replica(&scenery, "second", &[FLAG]).await?;
    wait_until_it_says_so(&collector).await?;
    ensure_quiet(&scenery).await?;
    collector.daemon.process.signal(Signal::KILL)?;
    collector.daemon.process.wait(LIMIT).await?;
    let collector = replica(&scenery, "third", &[FLAG]).await?;
    wait_for_leader(&scenery, Some("second")).await?;
    wait_until_it_says_so(&collector).await?;
    ensure_quiet(&scenery).await?;
    ensure_none_since(&scenery, sent)?;

    clear(&leases(&scenery)?).await?;
    scenery.deletions.until_seen(sent + 1, LIMIT).await?;
    finish(Stage { collector, scenery }).await
}

#[tokio::test]
async fn the_breaker_trips_after_a_failover_too_and_stays_tripped_over_the_next() -> Result<()> {
    let mut scenery = Scenery::new("breakers").await?;
    let mut replicas = Vec::new();
    for name in REPLICAS {
        replicas.push((name, replica(&scenery, name, &[FLAG]).await?));
    }
    let first = wait_for_leader(&scenery, None).await?;
    scenery.bring_down().await?;
    kill(&mut replicas, &first).await?;
    let second = wait_for_leader(&scenery, Some(&first)).await?;
    wait_until_tripped(&scenery).await?;
    ensure_quiet(&scenery).await?;
    // What the first had counted went with it.
    let sent = scenery.deletions.seen();
    ensure!(sent <= 2 * PER_MINUTE, "{sent} deletions");
    kill(&mut replicas, &second).await?;
    wait_for_leader(&scenery, Some(&second)).await?;
    for (_, replica) in &replicas {
        wait_until_it_says_so(replica).await?;
    }
    ensure_quiet(&scenery).await?;
    ensure_none_since(&scenery, sent)?;

    clear(&leases(&scenery)?).await?;
    scenery.deletions.until_seen(sent + 1, LIMIT).await?;
    let (_, collector) = replicas.pop().context("one of three is left")?;
    finish(Stage { collector, scenery }).await
}

/// Kills a replica, and returns once it has ended.
async fn kill(replicas: &mut Vec<(&'static str, Collector)>, name: &str) -> Result<()> {
    for (_, killed) in replicas.extract_if(.., |(its_name, _)| *its_name == name) {
        killed.daemon.process.signal(Signal::KILL)?;
        killed.daemon.process.wait(LIMIT).await?;
    }
    Ok(())
}

/// Clears the breaker again and again, until all is as it must be.
async fn finish(stage: Stage) -> Result<()> {
    let finished = tokio::select! {
        judged = stage.judge() => judged,
        failed = keep_clear(&stage.scenery) => failed,
    };
    finished?;
    clear(&leases(&stage.scenery)?).await?;
    wait_for_gauge(&stage.collector, 0.0).await
}

async fn wait_for_event(scenery: &Scenery) -> Result<()> {
    let events: Api<Event> = Api::all(scenery.plane.client()?);
    eventually(LIMIT, "an event on the Lease", || async {
        let found = events.list(&ListParams::default()).await?.items;
        let is_it = |event: &&Event| event.reason.as_deref() == Some("DeletionLimitReached");
        let event = found.iter().find(is_it).context("there is none")?;
        let regarding = event.regarding.as_ref();
        let on = regarding.and_then(|regarding| Some((regarding.kind.as_deref()?, regarding.name.as_deref()?)));
        ensure!(on == Some(("Lease", LEASE)), "{event:?}");
        Ok(())
    })
    .await
}
