//! Reviews and probes while a tenant sends the most expensive reviews and conversions that he can.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http::Request;
use kube::{Client, Config};
use portreeve_testing::https_get;
use serde_json::{Value as Json, json};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::run::Run;
use crate::statistics::{Unit, Value, percentile};
use crate::webhook::Endpoint;

/// How many requests of each kind the tenant has in progress.
const AT_ONCE: usize = 2;
/// The pause between two measured requests.
const PAUSE: Duration = Duration::from_millis(20);
/// The most schedules that are checked in one object, as in docs/webhook-operation.md.
const SCHEDULES: usize = 32;
/// Near the limit of etcd for one object.
const LARGE: usize = 1_400_000;

const VALIDATE: &str = "/validate/crontabs.stable.example.com";
const CONVERT: &str = "/convert/crontabs.stable.example.com";

/// Measures the times of reviews of another namespace, and of probes, without and with the load.
pub(crate) async fn measure(run: &Run<'_>) -> Result<Vec<Value>> {
    let endpoint = Endpoint::new(run)?;
    let server = endpoint.start(run, None, &["--install-crds".to_owned()]).await?;
    server.idle(run).await?;
    let (health, _) = server.liveness().context("the subject has no health endpoint")?;
    let client = client(endpoint.port())?;
    let alone = server.guard(reviews(&client, run.count())).await?;
    let mut load = JoinSet::new();
    for (path, body) in hostile_requests() {
        for _ in 0..AT_ONCE {
            let (client, body) = (client.clone(), body.clone());
            load.spawn(async move {
                // Whether it is rejected does not matter.
                loop {
                    drop(send(&client, path, &body).await);
                }
            });
        }
    }
    let beside = server.guard(reviews(&client, run.count())).await?;
    let live = server.guard(probes(health, "/livez", run.count())).await?;
    let ready = server.guard(probes(health, "/readyz", run.count())).await?;
    load.shutdown().await;
    let mut values = Vec::new();
    for (measure, times) in [
        ("p99 of reviews without the load", alone),
        ("p99 of reviews", beside),
        ("p99 of /livez", live),
        ("p99 of /readyz", ready),
    ] {
        let time = percentile(&times, 99).context("there were no requests")?;
        values.push(Unit::Seconds.of(measure, time));
    }
    Ok(values)
}

/// Returns a client of the webhook that sends each request once.
fn client(port: u16) -> Result<Client> {
    let mut config = Config::new(format!("https://127.0.0.1:{port}").parse()?);
    config.accept_invalid_certs = true;
    Ok(Client::try_from(config)?)
}

async fn send(client: &Client, path: &str, body: &str) -> Result<String> {
    let request = Request::post(path).header("Content-Type", "application/json");
    Ok(client.request_text(request.body(body.as_bytes().to_vec())?).await?)
}

/// Sends reviews of several other namespaces one after another, and returns their sorted times in
/// seconds.
async fn reviews(client: &Client, count: usize) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let object = json!({"apiVersion": "stable.example.com/v1", "spec": {"schedule": "0 6 * * mon-fri"}});
        let body = review(&format!("other-{}", number % 8), "v1", &object);
        let started = Instant::now();
        let answer = send(client, VALIDATE, &body).await?;
        times.push(started.elapsed().as_secs_f64());
        ensure!(answer.contains(r#""allowed":true"#), "a review got {answer}");
        sleep(PAUSE).await;
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// Sends probes, each over a new connection, and returns their sorted times in seconds.
async fn probes(port: u16, path: &str, count: usize) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let started = Instant::now();
        let response = https_get(port, path, "").await?;
        times.push(started.elapsed().as_secs_f64());
        let status = response.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "a probe got {status:?}");
        sleep(PAUSE).await;
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

fn review(namespace: &str, version: &str, object: &Json) -> String {
    let resource = json!({"group": "stable.example.com", "version": version, "resource": "crontabs"});
    let request = json!({
        "uid": "u", "resource": resource, "namespace": namespace, "operation": "CREATE", "object": object,
    });
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

fn conversion(object: &Json) -> String {
    let request = json!({"uid": "u", "desiredAPIVersion": "stable.example.com/v2", "objects": [object]});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request}).to_string()
}

/// Returns a review with as many schedules as are checked, one with far more in the annotation of
/// v1, and a review and a conversion of an object with many values.
fn hostile_requests() -> Vec<(&'static str, String)> {
    // Its next run is up to forty years away.
    let schedules = |count: usize| -> Vec<Json> {
        let one = |number| json!({"name": format!("s{number}"), "schedule": "0 0 29 2 1"});
        (0..count).map(one).collect()
    };
    let of_v2 = json!({"apiVersion": "stable.example.com/v2", "spec": {"schedules": schedules(SCHEDULES)}});
    let stored = json!({"spec": {"schedules": schedules(3_351)}}).to_string();
    let in_annotation = json!({
        "apiVersion": "stable.example.com/v1",
        "metadata": {"annotations": {"stable.example.com/v2": stored}},
        "spec": {"schedule": "@daily"},
    });
    let values: Vec<Json> = vec![json!({"a": 1}); LARGE / 8];
    let large = json!({
        "apiVersion": "stable.example.com/v1",
        "metadata": {"managedFields": values},
        "spec": {"schedule": "@daily"},
    });
    vec![
        (VALIDATE, review("tenant", "v2", &of_v2)),
        (VALIDATE, review("tenant", "v1", &in_annotation)),
        (VALIDATE, review("tenant", "v1", &large)),
        (CONVERT, conversion(&large)),
    ]
}
