//! Requests for which the apiserver calls a validating webhook: their times, and the CPU time and
//! memory of the process that serves the webhook.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use kube::CustomResourceExt;
use kube::api::{DynamicObject, PostParams};
use portreeve_crontab::api::CronTab;
use portreeve_testing::eventually;
use tokio::time::interval;

use crate::controller::{Controller, START_LIMIT};
use crate::objects::{CRON_TAB, api, definitions, far_schedule, post, schedule, wait_until_served};
use crate::run::{Run, log};
use crate::statistics::{Unit, Value, number, percentile};
use crate::webhook::Endpoint;

/// The requests per second whose times are measured.
const RATE: u32 = 100;
/// A multiple of that rate, at which CPU time and memory are measured.
const LOAD_FACTOR: u32 = 5;
/// The number of requests before the first measured one.
const WARM_UP: usize = 200;
/// The most requests in progress. At a rate that the servers cannot reach, the others wait.
const CONCURRENT_REQUESTS: usize = 64;

/// Measures times at one rate, and CPU time and memory at a higher one.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    let server = start(run).await?;
    wait_until_served(&api(&run.client, CRON_TAB)).await?;
    let Some(server) = server else {
        run.idle(None).await?;
        return times(run).await;
    };
    server.guard(wait_until_called(run)).await?;
    server.idle(run).await?;
    let mut values = server.guard(times(run)).await?;

    let (count, before) = (run.count() * LOAD_FACTOR as usize, server.cpu_time()?);
    log(format!("  measuring {} requests a second", RATE * LOAD_FACTOR));
    server.guard(requests(run, RATE * LOAD_FACTOR, count)).await?;
    let (used, memory) = (server.cpu_time()?.since(&before), server.memory()?);
    values.push(Unit::Seconds.of("CPU time of a request under load", used / number(count)));
    values.push(Unit::Kibibytes.of("resident memory under load", memory));
    Ok(values)
}

/// Starts the process of the subject that serves the webhook, if it has one, and configures the
/// apiserver.
async fn start(run: &Run<'_>) -> Result<Option<Controller>> {
    let subject = run.step.subject;
    if !subject.is_ours() {
        post(&definitions(&run.client), serde_json::to_value(CronTab::crd())?).await?;
    }
    if subject.is_floor() {
        return Ok(None);
    }
    let endpoint = Endpoint::new(run)?;
    let path = if run.peers.is_some() {
        "/validate-stable-example-com-v1-crontab"
    } else {
        "/validate/crontabs.stable.example.com"
    };
    let server = endpoint.start(run, None, &["--install-crds".to_owned()]).await?;
    endpoint.validate(run, path).await?;
    Ok(Some(server))
}

/// Waits until the webhook rejects a schedule.
async fn wait_until_called(run: &Run<'_>) -> Result<()> {
    let rejected = || async {
        match send(run, "nonsense").await {
            Ok(()) => Err(anyhow!("the schedule was not rejected")),
            Err(error) if format!("{error:#}").contains("spec.schedule") => Ok(()),
            Err(error) => Err(error),
        }
    };
    eventually(START_LIMIT, "the webhook to be called", rejected).await
}

/// Returns the percentiles of the times of requests.
async fn times(run: &Run<'_>) -> Result<Vec<Value>> {
    requests(run, RATE, WARM_UP.min(run.count())).await?;
    let mut times = requests(run, RATE, run.count()).await?;
    times.sort_by(f64::total_cmp);
    let measures = [("p50", 50), ("p99", 99)].map(|(measure, percent)| {
        let time = percentile(&times, percent).context("there were no requests")?;
        Ok(Unit::Seconds.of(measure, time))
    });
    measures.into_iter().collect()
}

/// Sends requests at a rate, and returns their times in seconds.
async fn requests(run: &Run<'_>, rate: u32, count: usize) -> Result<Vec<f64>> {
    let ticks = stream::unfold(interval(Duration::from_secs(1) / rate), async |mut ticks| {
        ticks.tick().await;
        Some(((), ticks))
    });
    let numbered = ticks.take(count).enumerate();
    let times = numbered.map(|(index, ())| async move {
        let started = Instant::now();
        send(run, &far_schedule(index)).await?;
        anyhow::Ok(started.elapsed().as_secs_f64())
    });
    let times: Vec<f64> = times.buffer_unordered(CONCURRENT_REQUESTS).try_collect().await?;
    ensure!(times.len() == count, "a request is missing");
    Ok(times)
}

/// Creates a CronTab in a dry run, which etcd does not store.
async fn send(run: &Run<'_>, text: &str) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(schedule(CRON_TAB, "work", text))?;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let created = api(&run.client, CRON_TAB).create(&params, &object).await;
    created.context("a request failed")?;
    Ok(())
}
