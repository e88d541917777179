//! The end of an outage while many items fail.

use std::{future::Future, pin::pin, time::Duration};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams};
use portreeve_testing::{CannedResponse, FaultProxy, Matcher, Repeat, RequestCounter, eventually};
use tokio::time::{Instant, interval};

use super::is_full_size;
use crate::fixtures::{
    LIMIT,
    daemon::{ALL_CONTROLLERS, Daemon},
    definitions::plane_with_definitions,
    namespace::NamespaceFixture,
};

/// The number of clients that create Foos.
const CLIENTS: usize = 16;
/// The number of failed probes after which the daemon has detected the outage.
const PROBES: u64 = 6;

/// The time in which requests are compared. Few requests are compared as a whole, because a busy
/// machine spreads them over any number of seconds.
fn window() -> Duration {
    if is_full_size() {
        Duration::from_secs(1)
    } else {
        Duration::MAX
    }
}

/// Runs `work`, and returns its result with the largest number of requests in any [`window`] of it.
async fn most_requests<T>(requests: &RequestCounter, work: impl Future<Output = Result<T>>) -> Result<(T, u64)> {
    let window = window();
    let mut samples = vec![(Instant::now(), requests.matched())];
    let mut ticks = interval(Duration::from_millis(10));
    let mut work = pin!(work);
    let done = loop {
        tokio::select! {
            done = &mut work => break done?,
            tick = ticks.tick() => samples.push((tick, requests.matched())),
        }
    };
    samples.push((Instant::now(), requests.matched()));
    let mut first = 0;
    let mut most = 0;
    for (at, count) in &samples {
        while at.duration_since(samples[first].0) > window {
            first += 1;
        }
        most = most.max(count - samples[first].1);
    }
    Ok((done, most))
}

async fn wait_for_deployments(fixture: &NamespaceFixture, count: usize) -> Result<()> {
    let deployments = fixture.deployments();
    eventually(LIMIT, &format!("{count} Deployments"), || async {
        let found = deployments.list_metadata(&ListParams::default()).await?.items.len();
        ensure!(found == count, "there are {found}");
        anyhow::Ok(())
    })
    .await
}

/// Waits until no item waits or is reconciled.
async fn wait_until_idle(daemon: &Daemon) -> Result<()> {
    eventually(LIMIT, "an idle daemon", || async {
        let metrics = daemon.admin.metrics().await?;
        let depth = metrics.sum("workqueue_depth", &[]);
        let active = metrics.sum("controller_runtime_active_workers", &[]);
        ensure!(depth + active == 0.0, "{depth} items wait, {active} are reconciled");
        anyhow::Ok(())
    })
    .await
}

/// After an outage, a daemon sends at most 1.5 times the requests of a start with as much work, in
/// any second if there are many objects.
#[tokio::test]
async fn many_failed_items_cause_no_more_requests_after_an_outage_than_a_start() -> Result<()> {
    let count = if is_full_size() { 1_000 } else { 60 };
    let plane = plane_with_definitions().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let fixture = &NamespaceFixture::new(&plane, "outage").await?;
    let created = (0..count).map(|number| async move {
        let name = format!("web-{number}");
        fixture.create_foo(&name, &name, 1).await.map(drop)
    });
    let created = stream::iter(created).buffer_unordered(CLIENTS);
    created.try_for_each(|()| async { Ok(()) }).await?;

    let requests = proxy.count(Matcher::any());
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "outage")?;
    let start = async {
        let daemon = Daemon::start_as(&plane, &kubeconfig, "outage", &[&ALL_CONTROLLERS]).await?;
        wait_for_deployments(fixture, count).await?;
        wait_until_idle(&daemon).await?;
        Ok(daemon)
    };
    let (_daemon, at_start) = most_requests(&requests, start).await?;

    let creations = Matcher::any().method("POST").resource("deployments");
    let failures = proxy.respond(creations, CannedResponse::unavailable(), Repeat::UntilHealed);
    let (all, params) = (ListParams::default(), DeleteParams::default());
    fixture.deployments().delete_collection(&params, &all).await?;
    failures.wait_for_applied(count.try_into()?, LIMIT).await?;
    let probes = proxy.count(Matcher::any().path_prefix("/readyz"));
    let outage = proxy.respond(Matcher::any(), CannedResponse::unavailable(), Repeat::UntilHealed);
    proxy.reset();
    probes.wait_for_matched(probes.matched() + PROBES, LIMIT).await?;

    let requests = proxy.count(Matcher::any());
    let recovery = async {
        for fault in [&failures, &outage] {
            proxy.heal_one(fault);
        }
        wait_for_deployments(fixture, count).await
    };
    let ((), after_outage) = most_requests(&requests, recovery).await?;
    ensure!(
        2 * after_outage <= 3 * at_start,
        "{after_outage} requests after the outage, {at_start} at the start"
    );
    Ok(())
}
