//! The pages about the process: the cases of Kubernetes' `TestKubeControllerManagerServingZPages`,
//! with its flags, and the log level.

use anyhow::{Context, Result, ensure};
use http::{Method, Request, StatusCode, header};
use kube::client::Body;
use portreeve_testing::ControlPlane;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::Value;

use super::{Credentials, NOTHING, account_token, ensure_status, rule};
use crate::fixtures::{
    LIMIT,
    admin::{Admin, send},
    daemon::Daemon,
};

/// What a request for a page must return.
enum Expected {
    Text,
    /// An object in this version. The old one is deprecated, which a warning says.
    Object(&'static str),
    NotAcceptable,
}

const BETA: Expected = Expected::Object("v1beta1");

/// Returns the values of the header Accept, with KIND for the kind of the page.
fn cases() -> Vec<(&'static str, Expected)> {
    let alpha_first = "application/json;g=config.k8s.io;v=v1alpha1;as=KIND,\
                       application/json;g=config.k8s.io;v=v1beta1;as=KIND";
    let beta_first = "application/json;g=config.k8s.io;v=v1beta1;as=KIND,\
                      application/json;g=config.k8s.io;v=v1alpha1;as=KIND";
    vec![
        ("text/plain", Expected::Text),
        ("application/json;v=v1beta1;g=config.k8s.io;as=KIND", BETA),
        ("", Expected::Text),
        ("application/xml", Expected::NotAcceptable),
        ("application/json", Expected::NotAcceptable),
        ("application/json;v=v1beta1;g=config.k8s.io", Expected::NotAcceptable),
        ("*/*", Expected::Text),
        ("application/json;v=foo;g=config.k8s.io;as=KIND,*/*", Expected::Text),
        ("application/yaml;v=v1beta1;g=config.k8s.io;as=KIND", BETA),
        ("application/cbor;v=v1beta1;g=config.k8s.io;as=KIND", BETA),
        (alpha_first, Expected::Object("v1alpha1")),
        (beta_first, BETA),
    ]
}

/// Checks one page for one header.
async fn check(admin: &Admin, root: &[u8], kind: &str, accept: &str, expected: &Expected) -> Result<()> {
    let page = kind.to_ascii_lowercase();
    let mut config = admin.config()?;
    // The self-signed certificate is verified.
    config.root_cert = Some(vec![root.to_vec()]);
    let request = Request::get(format!("/{page}"))
        .header(header::ACCEPT, accept.replace("KIND", kind))
        .header(header::AUTHORIZATION, "Token abc");
    let response = send(config, request.body(Body::empty())?).await?;
    let status = response.status();
    let warns = response.headers().contains_key(header::WARNING);
    let media_type = response
        .headers()
        .get(header::CONTENT_TYPE)
        .context("no type")?
        .to_str()?
        .to_owned();
    let body = response.body();
    match expected {
        Expected::NotAcceptable => ensure!(status == StatusCode::NOT_ACCEPTABLE, "{status}"),
        Expected::Text => {
            let start = format!("\nportreeve {page}\nWarning: This endpoint is not meant to be machine parseable");
            ensure!(
                status == StatusCode::OK && body.starts_with(start.as_bytes()),
                "{status}"
            );
            ensure!(media_type == "text/plain; charset=utf-8", "{media_type}");
        }
        Expected::Object(version) => check_object(&decode(&media_type, body)?, kind, version)?,
    }
    let is_deprecated = matches!(expected, Expected::Object("v1alpha1"));
    ensure!(warns == is_deprecated, "warning: {warns}");
    Ok(())
}

fn decode(media_type: &str, body: &[u8]) -> Result<Value> {
    Ok(match media_type {
        "application/json" => serde_json::from_slice(body)?,
        "application/yaml" => serde_saphyr::from_slice(body)?,
        "application/cbor" => {
            let tagless = body.strip_prefix(&[0xd9, 0xd9, 0xf7]).context("no tag")?;
            ciborium::from_reader(tagless)?
        }
        other => anyhow::bail!("{other}"),
    })
}

fn check_object(object: &Value, kind: &str, version: &str) -> Result<()> {
    let api_version = format!("config.k8s.io/{version}");
    ensure!(
        object["kind"] == kind && object["apiVersion"] == api_version,
        "{object}"
    );
    ensure!(object["metadata"]["name"] == "portreeve", "{object}");
    if kind == "Flagz" {
        ensure!(object["flags"]["leader-elect"] == "false", "{object}");
        return Ok(());
    }
    let paths = object["paths"].as_array().context("no paths")?;
    for path in ["/configz", "/flagz", "/healthz", "/metrics"] {
        ensure!(paths.contains(&path.into()), "{object}");
    }
    let times = object["startTime"].is_string() && object["uptimeSeconds"].is_number();
    ensure!(times, "{object}");
    Ok(())
}

#[tokio::test]
async fn z_pages_answer_in_the_form_that_is_asked_for() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let kubeconfig = plane.kubeconfig().display();
    let folder = plane.folder().join("z-pages");
    let [authentication, authorization] =
        ["authentication", "authorization"].map(|name| format!("--{name}-kubeconfig={kubeconfig}"));
    let certificates = format!("--cert-dir={}", folder.display());
    let flags = [
        NOTHING,
        "--authentication-skip-lookup",
        &authentication,
        &authorization,
        &certificates,
        "--authorization-always-allow-paths=/statusz,/flagz,/configz",
    ];
    let daemon = Daemon::start_closed(plane, plane.kubeconfig(), "z-pages", &flags).await?;
    let root = CertificateDer::from_pem_file(folder.join("portreeve.crt"))?;
    for kind in ["Statusz", "Flagz"] {
        for (accept, expected) in cases() {
            let result = check(&daemon.admin, &root, kind, accept, &expected).await;
            result.with_context(|| format!("{kind} as {accept:?}"))?;
        }
    }
    ensure_status(&daemon.admin, "/configz", &Credentials::None, 200).await?;
    ensure_status(&daemon.admin, "/metrics", &Credentials::None, 403).await?;
    Ok(())
}

#[tokio::test]
async fn feature_gates_turn_z_pages_off() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let flags = [
        NOTHING,
        "--feature-gates=ComponentFlagz=false",
        "--authorization-always-allow-paths=/*",
    ];
    let daemon = Daemon::start_closed(plane, plane.kubeconfig(), "no-flagz", &flags).await?;
    ensure_status(&daemon.admin, "/flagz", &Credentials::None, 404).await?;
    ensure_status(&daemon.admin, "/statusz", &Credentials::None, 200).await?;
    Ok(())
}

#[tokio::test]
async fn the_log_level_can_be_changed_with_a_right_to_it() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let system = plane.namespace("access").await?;
    let daemon = Daemon::start_closed(plane, plane.kubeconfig(), "verbose-daemon", &[NOTHING]).await?;
    let put = async |credentials: &Credentials, body: &'static str| {
        let request = Request::builder().method(Method::PUT).uri("/debug/flags/v");
        daemon
            .admin
            .send_as(request.body(Body::from(body.as_bytes().to_vec()))?, credentials)
            .await
    };
    let mut may_put = rule(&["/debug/flags/v"]);
    may_put.verbs = vec!["put".to_owned()];
    let operator = account_token(plane, &system, "operator", vec![may_put]).await?;
    let reader = account_token(plane, &system, "reader", vec![rule(&["/debug/flags/v"])]).await?;
    let (status, _) = put(&reader, "4").await?;
    ensure!(status == StatusCode::FORBIDDEN, "{status}");
    for (body, expected) in [("", 400), ("four", 400), ("256", 400), ("4", 200)] {
        let (status, text) = put(&operator, body).await?;
        ensure!(status.as_u16() == expected, "{body:?}: {status}: {text}");
    }
    let debug = |line: &str| line.contains("DEBUG") && line.contains("portreeve");
    // Each rejected request is logged at debug.
    ensure_status(&daemon.admin, "/metrics", &Credentials::Token("wrong".to_owned()), 401).await?;
    daemon.process.wait_for_log(LIMIT, debug).await?;
    Ok(())
}
