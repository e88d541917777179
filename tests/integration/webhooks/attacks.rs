//! What a tenant, or a client that reaches the port, may send: objects of any depth and weight, and
//! many at once. All of it is bounded.

use std::fs;

use anyhow::{Context, Result, ensure};
use futures::future::join_all;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use portreeve_crontab::api::CRONTABS;
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::environment::{fixture, shared};
use crate::{
    fixtures::{
        LIMIT,
        admin::Admin,
        webhooks::{CONTROLLERS, WebhookDaemon, create, crontab},
    },
    scale::is_full_size,
};

const CONVERT: &str = "/convert/crontabs.stable.example.com?timeout=30s";
const VALIDATE: &str = "/validate/crontabs.stable.example.com?timeout=30s";
/// The memory that the process may take, in KiB. The image's container has twice as much.
const MOST_MEMORY: u64 = 128 << 10;

fn conversion(object: &str) -> String {
    format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{{"uid":"u","desiredAPIVersion":"stable.example.com/v2","objects":[{object}]}}}}"#
    )
}

fn review(object: &str) -> String {
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","resource":{{"group":"stable.example.com","version":"v1","resource":"crontabs"}},"namespace":"n","operation":"CREATE","object":{object}}}}}"#
    )
}

fn post(path: &str, body: String) -> Result<Request<Body>> {
    let request = Request::post(path).header("Content-Type", "application/json");
    Ok(request.body(Body::from(body.into_bytes()))?)
}

/// Returns a client without retries that opens a connection for each request in progress.
fn client(webhooks: Admin) -> Result<Client> {
    let mut config = webhooks.config()?;
    config.accept_invalid_certs = true;
    Ok(Client::try_from(config)?)
}

/// Returns the largest memory that a process has taken so far, in KiB.
fn peak(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let line = line.context("no VmHWM")?.trim().trim_end_matches(" kB");
    Ok(line.parse()?)
}

/// The apiserver takes managed fields of any depth. A request that the webhook cannot answer would
/// be allowed.
#[tokio::test]
async fn the_depth_of_managed_fields_is_no_way_around_the_validation() -> Result<()> {
    let fixture = fixture("deep").await?;
    let mut fields = json!({});
    for _ in 0..150 {
        fields = json!({ "f:a": fields });
    }
    let entry = json!({"manager": "m", "operation": "Update", "apiVersion": "stable.example.com/v1",
        "fieldsType": "FieldsV1", "fieldsV1": fields});
    let with = |name: &str, schedule: &str| {
        let mut object = crontab(name, json!({ "schedule": schedule }));
        object["metadata"]["managedFields"] = json!([entry]);
        object
    };
    let bad = create(
        fixture.client(),
        &CRONTABS,
        fixture.name(),
        "",
        &with("bad", "61 * * * *"),
    )
    .await?;
    ensure!(bad.status == StatusCode::UNPROCESSABLE_ENTITY, "{bad:?}");
    let good = create(fixture.client(), &CRONTABS, fixture.name(), "", &with("good", "@daily")).await?;
    ensure!(good.status == StatusCode::CREATED, "{good:?}");
    // The response is too deep to be decoded here.
    let kept = "\"f:a\":{".repeat(149);
    ensure!(good.body.as_str().is_some_and(|body| body.contains(&kept)), "{good:?}");
    Ok(())
}

/// Returns requests with objects that are deep, have many values, or are long.
fn hostile_requests() -> Vec<(&'static str, String)> {
    let deep = format!("{}{}", "{\"a\":[".repeat(100_000), "]}".repeat(100_000));
    let many = format!("[{}]", vec![r#"{"a":1}"#; 175_000].join(","));
    let padding = "x".repeat(1_400_000);
    let objects = [
        format!(r#"{{"apiVersion":"stable.example.com/v1","metadata":{{"managedFields":{deep}}},"spec":{deep}}}"#),
        format!(r#"{{"apiVersion":"stable.example.com/v1","metadata":{{"annotations":{many}}},"spec":{{}}}}"#),
        format!(r#"{{"apiVersion":"stable.example.com/v1","metadata":{{}},"spec":{many},"status":{many}}}"#),
        format!(r#"{{"apiVersion":"stable.example.com/v1","spec":{{"unknown":"{padding}"}}}}"#),
    ];
    let requests = objects
        .iter()
        .flat_map(|object| [(CONVERT, conversion(object)), (VALIDATE, review(object))]);
    requests.collect()
}

/// Sends a request, and reads the whole response.
async fn send(client: &Client, path: &str, body: String) -> Result<StatusCode> {
    let response = client.send(post(path, body)?).await?;
    let status = response.status();
    response.into_body().collect().await?;
    Ok(status)
}

/// Everything at once, and clients that do not read their answers.
#[tokio::test]
async fn memory_is_bounded_and_large_requests_are_answered() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let daemon = WebhookDaemon::start(plane, "attacked", &[CONTROLLERS]).await?;
    daemon.daemon.admin.wait_until_ready().await?;
    let client = client(daemon.webhooks)?;
    let before = peak(daemon.daemon.process.pid())?;
    let times = if is_full_size() { 8 } else { 1 };
    let requests = std::iter::repeat_n(hostile_requests(), times).flatten();
    let answers = join_all(requests.map(|(path, body)| send(&client, path, body))).await;
    let answers = answers.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(
        answers.len() == 8 * times && answers.iter().all(|status| *status == StatusCode::OK),
        "{answers:?}"
    );

    // Each of these clients keeps its connection, and reads nothing after the head.
    let padding = "x".repeat(6_900_000);
    let large = conversion(&format!(
        r#"{{"apiVersion":"stable.example.com/v1","spec":{{"unknown":"{padding}"}}}}"#
    ));
    let unread = join_all((0..20).map(|_| async { anyhow::Ok(client.send(post(CONVERT, large.clone())?).await?) }));
    let unread = unread.await.into_iter().collect::<Result<Vec<_>>>()?;
    let answered = unread
        .iter()
        .filter(|response| response.status() == StatusCode::OK)
        .count();
    ensure!((1..20).contains(&answered), "{answered} of 20 were answered at once");
    // Once their connections are closed, others are answered.
    eventually(LIMIT, "an answer to a large request", || async {
        let status = send(&client, CONVERT, large.clone()).await?;
        ensure!(status == StatusCode::OK, "{status}");
        anyhow::Ok(())
    })
    .await?;
    drop(unread);
    let peak = peak(daemon.daemon.process.pid())?;
    ensure!(
        peak < MOST_MEMORY,
        "the process took {peak} KiB, and {before} KiB before"
    );
    ensure_no_panics(&daemon).await
}

async fn ensure_no_panics(daemon: &WebhookDaemon) -> Result<()> {
    let metrics = daemon.daemon.admin.metrics().await?;
    let panics = metrics.sum("controller_runtime_webhook_panics_total", &[]);
    ensure!(panics < 1.0, "{panics} panics");
    Ok(())
}

/// Objects that no schema admits, as a client of the port may send them.
#[tokio::test]
async fn no_object_causes_a_panic() -> Result<()> {
    let daemon = &shared().await?.daemon;
    let client = client(daemon.webhooks)?;
    let v2_fields = json!({"spec": {"schedules": [{"name": "a"}]}}).to_string();
    let values = [
        json!(null),
        json!(1),
        json!("x"),
        json!([]),
        json!({}),
        json!([{}]),
        json!({"schedules": 1}),
    ];
    for spec in &values {
        for annotations in values.iter().chain([&json!({"stable.example.com/v2": v2_fields})]) {
            let object = |version: &str| -> Value {
                json!({"apiVersion": format!("stable.example.com/{version}"), "kind": "CronTab",
                    "metadata": {"annotations": annotations}, "spec": spec, "status": spec})
            };
            for (path, body) in [
                (CONVERT, conversion(&object("v1").to_string())),
                (
                    CONVERT,
                    conversion(&object("v2").to_string()).replace("/v2\",\"objects", "/v1\",\"objects"),
                ),
                (VALIDATE, review(&object("v1").to_string())),
                (VALIDATE, review(&object("v2").to_string())),
            ] {
                let status = send(&client, path, body).await?;
                ensure!(status == StatusCode::OK, "{status}: {spec} {annotations}");
            }
        }
    }
    ensure_no_panics(daemon).await
}
