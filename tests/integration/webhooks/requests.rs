//! Requests to the listener that are no valid reviews, and the client certificate of the apiserver.

use std::fs;

use anyhow::{Context, Result, ensure};
use http::{Request, StatusCode};
use kube::client::Body;
use portreeve_crontab::api::CRONTABS;
use portreeve_testing::{Authority, ControlPlane};
use serde_json::json;

use super::environment::{Environment, shared};
use crate::fixtures::{
    admin::{Admin, Credentials},
    definitions::with_definitions,
    webhooks::{create, crontab},
};

const PATH: &str = "/validate/crontabs.stable.example.com";

fn post(body: impl Into<Body>) -> Result<Request<Body>> {
    let request = Request::post(PATH).header("Content-Type", "application/json");
    Ok(request.body(body.into())?)
}

async fn ensure_response(
    webhooks: &Admin,
    request: Request<Body>,
    (status, body): (StatusCode, &str),
    credentials: &Credentials,
) -> Result<()> {
    let (actual, text) = webhooks.send_as(request, credentials).await?;
    ensure!(actual == status && text.starts_with(body), "{actual}: {text}");
    Ok(())
}

#[tokio::test]
async fn hostile_requests_get_400_with_a_reason_and_are_counted() -> Result<()> {
    let environment = shared().await?;
    let webhooks = &environment.daemon.webhooks;
    let bad = StatusCode::BAD_REQUEST;
    let no_review = "the body is no AdmissionReview";
    let table = [
        (post(Vec::new())?, bad, no_review),
        (post("[".repeat(100_000).into_bytes())?, bad, no_review),
        (
            Request::post(PATH).body(Body::from(b"{}".to_vec()))?,
            bad,
            "the Content-Type is not application/json",
        ),
        (
            Request::post("/validate/others.example.com").body(Body::empty())?,
            StatusCode::NOT_FOUND,
            "",
        ),
    ];
    for (request, status, body) in table {
        ensure_response(webhooks, request, (status, body), &Credentials::None).await?;
    }
    let metrics = environment.daemon.daemon.admin.metrics().await?;
    let path = format!("webhook=\"{PATH}\"");
    let count = |code: &str| metrics.sum("controller_runtime_webhook_requests_total", &[&path, code]);
    ensure!(
        count("code=\"400\"") >= 3.0 && count("code=\"200\"") >= 1.0,
        "{}",
        metrics.0
    );
    ensure!(
        metrics
            .sum("controller_runtime_webhook_requests_in_flight", &[&path])
            .abs()
            < 0.5
    );
    ensure!(metrics.sum("portreeve_webhook_decisions_total", &[&path, "decision=\"denied\""]) >= 1.0);
    Ok(())
}

/// A series for each path, method or client would let anybody take memory.
#[tokio::test]
async fn requests_add_no_series() -> Result<()> {
    let environment = shared().await?;
    for number in 0..30 {
        let request = Request::builder()
            .method(&*format!("SERIES{number}"))
            .uri(format!("/series-{number}"))
            .header("User-Agent", format!("series-{number}"))
            .body(Body::empty())?;
        let expected = (StatusCode::NOT_FOUND, "");
        ensure_response(&environment.daemon.webhooks, request, expected, &Credentials::None).await?;
    }
    let metrics = environment.daemon.daemon.admin.metrics().await?;
    let added = metrics.0.lines().find(|line| line.to_lowercase().contains("series-1"));
    ensure!(added.is_none() && !metrics.0.contains("SERIES1"), "{added:?}");
    Ok(())
}

/// Returns the flag of an apiserver that presents a client certificate to webhooks on localhost.
fn admission_flag(folder: &std::path::Path, authority: &Authority) -> Result<String> {
    let issued = authority.client_certificate("kube-apiserver", "webhooks")?;
    let file = |name: &str, text: &str| -> Result<String> {
        let path = folder.join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "users": [{
            "name": "*",
            "user": {
                "client-certificate": file("webhook-client.crt", &issued.certificate)?,
                "client-key": file("webhook-client.key", &issued.key)?,
            },
        }],
    });
    let kubeconfig = file("webhook-client.kubeconfig", &kubeconfig.to_string())?;
    let plugin = |name: &str| {
        json!({
            "name": name,
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "WebhookAdmissionConfiguration",
                "kubeConfigFile": kubeconfig,
            },
        })
    };
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [plugin("MutatingAdmissionWebhook"), plugin("ValidatingAdmissionWebhook")],
    });
    let configuration = file("admission.yaml", &configuration.to_string())?;
    Ok(format!("--admission-control-config-file={configuration}"))
}

#[tokio::test]
async fn only_the_apiserver_is_served_with_its_certificate() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (authority, other) = (Authority::new()?, Authority::new()?);
    let ca = folder.path().join("webhook-ca.crt");
    fs::write(&ca, authority.pem())?;
    let plane = ControlPlane::builder().apiserver_arg(admission_flag(folder.path(), &authority)?);
    let flag = format!("--webhook-client-ca-file={}", ca.display());
    // The configurations are installed once the apiserver's calls are admitted.
    let environment = Environment::start(with_definitions(plane)?.pooled().await?, &[&flag]).await?;
    let client = environment.plane.client()?;
    let denied = create(
        &client,
        &CRONTABS,
        "default",
        "",
        &crontab("a", json!({"schedule": "61 * * * *"})),
    )
    .await?;
    ensure!(denied.message().contains("spec.schedule"), "{denied:?}");

    let webhooks = &environment.daemon.webhooks;
    let stranger = Credentials::Certificate(other.client_certificate("kube-apiserver", "webhooks")?);
    let forbidden = (StatusCode::FORBIDDEN, "");
    ensure_response(webhooks, post(Vec::new())?, forbidden, &Credentials::None).await?;
    ensure_response(webhooks, post(Vec::new())?, (StatusCode::UNAUTHORIZED, ""), &stranger).await?;
    let apiserver = Credentials::Certificate(authority.client_certificate("any", "any")?);
    ensure_response(webhooks, post(Vec::new())?, (StatusCode::BAD_REQUEST, ""), &apiserver).await?;
    let (status, text) = webhooks.get("/readyz").await.context("a probe has no certificate")?;
    ensure!((status, &*text) == (StatusCode::OK, "ok"), "{status}: {text}");
    Ok(())
}
