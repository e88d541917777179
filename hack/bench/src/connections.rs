//! Probes of the listener while slow clients hold its connections.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use portreeve_testing::{SlowClients, https_get};
use serde_json::Value as Json;
use tokio::time::{sleep, timeout};

use crate::controller::Controller;
use crate::run::Run;
use crate::statistics::{Unit, Value, percentile};

/// The number of probes of a series.
const PROBES: usize = 500;
/// The pause between two probes.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the clients may connect and be replaced before the first probe.
const WARM_UP: Duration = Duration::from_secs(10);
/// The time limit of a probe. A probe that takes longer fails the measurement.
const LIMIT: Duration = Duration::from_secs(10);

/// Measures the times of probes without other clients, with slow clients, and of probes with a
/// token.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    let account = run
        .plane
        .service_account_kubeconfig("kube-system", "prober", Vec::new())
        .await?;
    let account = fs::read_to_string(&account).with_context(|| format!("failed to read {}", account.display()))?;
    let account: Json = serde_saphyr::from_str(&account).context("failed to parse a kubeconfig")?;
    let token = account.pointer("/users/0/user/token").and_then(Json::as_str);
    let token = token.context("the kubeconfig has no token")?;
    let authorization = format!("Authorization: Bearer {token}\r\n");

    let controller = Controller::start(run, None).await?;
    let (port, path) = controller.liveness().context("the subject has no health endpoint")?;
    controller.idle(run).await?;
    let alone = controller.guard(probe(port, path, "")).await?;
    let clients = SlowClients::start(port, run.count());
    sleep(WARM_UP).await;
    let besieged = controller.guard(probe(port, path, "")).await?;
    let authenticated = controller.guard(probe(port, path, &authorization)).await?;
    drop(clients);
    let mut values = Vec::new();
    for (measure, times, percent) in [
        ("p99 without other clients", &alone, 99),
        ("p50", &besieged, 50),
        ("p99", &besieged, 99),
        ("max", &besieged, 100),
        ("p99 with a token", &authenticated, 99),
    ] {
        let time = percentile(times, percent).context("there were no probes")?;
        values.push(Unit::Seconds.of(measure, time));
    }
    Ok(values)
}

/// Sends probes one after another, each over a new connection as the kubelet does, and returns
/// their sorted times in seconds.
async fn probe(port: u16, path: &str, headers: &str) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        let started = Instant::now();
        let response = timeout(LIMIT, https_get(port, path, headers)).await;
        let response = response.context("a probe got no response in time")??;
        times.push(started.elapsed().as_secs_f64());
        let status = response.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "a probe got {status:?}");
        sleep(PAUSE).await;
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}
