//! The cases of apiextensions-apiserver's conversion tests that concern a webhook which is wrong or
//! is not called, by name. They show what `pkg/webhook` must guarantee for every conversion.

use anyhow::{Context, Result, ensure};
use http::{Method, StatusCode};
use kube::CustomResourceExt;
use portreeve_crontab::api::{CRONTABS, CRONTABS_V2, CronTab};
use portreeve_testing::{ControlPlane, WebhookServer, eventually};
use serde_json::{Value, json};

use super::environment::Environment;
use crate::fixtures::{
    LIMIT,
    conversion::{CronTabs, Definition, by_daemon, v1, webhook},
    webhooks::install_definitions,
};

/// Answers a review: changes the version of each object, and then applies `change` to it.
fn converter(change: fn(&mut Value)) -> impl Fn(Value) -> Option<Value> + Send + Sync {
    move |mut review| {
        let version = review["request"]["desiredAPIVersion"].clone();
        let mut objects = review["request"]["objects"].take();
        for object in objects.as_array_mut()? {
            object["apiVersion"] = version.clone();
            change(object);
        }
        Some(answer(
            &review,
            json!({"convertedObjects": objects, "result": {"status": "Success"}}),
        ))
    }
}

fn answer(review: &Value, mut response: Value) -> Value {
    response["uid"] = review["request"]["uid"].clone();
    json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response})
}

/// CronTabs that are stored in v1 and have a marker, on a control plane of their own.
async fn crontabs(plane: &ControlPlane) -> Result<(CronTabs, Definition)> {
    let client = plane.client()?;
    install_definitions(&client).await?;
    let definition = Definition::of(&client, CronTab::crd_name());
    let crontabs = CronTabs::of(&plane.namespace("wrong").await?);
    crontabs.create(&CRONTABS, &v1("marker", json!({}))).await?;
    Ok((crontabs, definition))
}

/// Lets a webhook convert, and waits until it does.
async fn call(
    plane: &ControlPlane,
    crontabs: &CronTabs,
    definition: &Definition,
    server: &WebhookServer,
) -> Result<()> {
    definition
        .convert(&webhook(server.url(), &plane.authority().pem()))
        .await?;
    definition.store("v1").await?;
    eventually(LIMIT, "the webhook to be called", || async {
        let _ = crontabs.get(&CRONTABS_V2, "marker").await;
        ensure!(server.requests() > 0, "it was not called");
        anyhow::Ok(())
    })
    .await
}

/// Labels and annotations of the converted object are kept, and nothing else of its metadata.
#[tokio::test]
async fn metadata_mutating() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (crontabs, definition) = crontabs(&plane).await?;
    let server = WebhookServer::start(
        plane.authority(),
        converter(|object| {
            let metadata = &mut object["metadata"];
            metadata["labels"]["mutated"] = "yes".into();
            metadata["annotations"]["mutated"] = "yes".into();
            metadata["finalizers"] = json!(["example.com/mutated"]);
            metadata["generation"] = 42.into();
            metadata["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]);
        }),
    )
    .await?;
    call(&plane, &crontabs, &definition, &server).await?;
    let metadata = crontabs.get(&CRONTABS_V2, "marker").await?["metadata"].take();
    ensure!(metadata["labels"] == json!({"mutated": "yes"}), "{metadata}");
    ensure!(metadata["annotations"] == json!({"mutated": "yes"}), "{metadata}");
    for field in ["finalizers", "ownerReferences"] {
        ensure!(metadata.get(field).is_none(), "{metadata}");
    }
    ensure!(metadata["generation"] == 1, "{metadata}");
    Ok(())
}

/// Returns a webhook that answers with an error or with nothing.
async fn failing(plane: &ControlPlane, group: &str) -> Result<WebhookServer> {
    let authority = plane.authority();
    match group {
        "metadata-uid-mutating" => {
            WebhookServer::start(
                authority,
                converter(|object| object["metadata"]["uid"] = "other".into()),
            )
            .await
        }
        "empty-response" => {
            let respond = |review: Value| {
                let response = json!({"convertedObjects": [], "result": {"status": "Success"}});
                Some(answer(&review, response))
            };
            WebhookServer::start(authority, respond).await
        }
        "failure-message" => {
            let respond = |review: Value| {
                let result = json!({"status": "Failure", "message": "this is the reason"});
                Some(answer(&review, json!({"result": result})))
            };
            WebhookServer::start(authority, respond).await
        }
        _ => WebhookServer::start(authority, |_| None).await,
    }
}

/// Each read and write of the version that is not stored fails, and says why.
#[tokio::test]
async fn metadata_uid_mutating_empty_response_failure_message_and_unhandled() -> Result<()> {
    // With a watch cache, the apiserver answers a list only once it has converted all objects.
    let plane = ControlPlane::builder()
        .apiserver_arg("--watch-cache=false")
        .pooled()
        .await?;
    let (crontabs, definition) = crontabs(&plane).await?;
    for (group, reason) in [
        ("metadata-uid-mutating", "must have the same UID"),
        ("empty-response", "returned 0 objects, expected 1"),
        ("failure-message", "this is the reason"),
        ("unhandled", "has prevented the request from succeeding"),
    ] {
        let server = failing(&plane, group).await?;
        call(&plane, &crontabs, &definition, &server).await?;
        let merge = "application/merge-patch+json";
        let change = json!({"metadata": {"labels": {"a": "b"}}});
        for (method, target, content_type, body) in [
            (Method::GET, "marker", "application/json", &Value::Null),
            (Method::GET, "", "application/json", &Value::Null),
            (Method::PATCH, "marker", merge, &change),
            (Method::DELETE, "marker", "application/json", &Value::Null),
            (Method::DELETE, "", "application/json", &Value::Null),
            (Method::GET, "marker/status", "application/json", &Value::Null),
            (Method::PATCH, "marker/status", merge, &change),
        ] {
            let what = format!("{group}: {method} {target:?}");
            // An apiserver that has not seen the new webhook yet reports the reason of another.
            eventually(LIMIT, &what, || async {
                let response = crontabs
                    .send(method.clone(), (&CRONTABS_V2, target), content_type, body)
                    .await?;
                ensure!(response.status.is_server_error(), "{response:?}");
                ensure!(response.message().contains(reason), "{response:?}");
                anyhow::Ok(())
            })
            .await?;
        }
        crontabs
            .get(&CRONTABS, "marker")
            .await
            .context("the stored version needs no webhook")?;
    }
    Ok(())
}

/// As long as everybody uses the version that is stored, the webhook is neither called nor needed.
#[tokio::test]
async fn test_webhook_not_called_for_unused_versions() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (crontabs, definition) = crontabs(&plane).await?;
    let server = WebhookServer::start(plane.authority(), |_| None).await?;
    definition
        .convert(&webhook(server.url(), &plane.authority().pem()))
        .await?;
    definition
        .edit(|definition| {
            for version in crate::fixtures::conversion::versions(definition) {
                version["served"] = (version["name"] == "v1").into();
            }
        })
        .await?;
    for name in ["a", "b"] {
        crontabs.create(&CRONTABS, &v1(name, json!({}))).await?;
        crontabs
            .merge(&CRONTABS, name, &json!({"spec": {"suspend": true}}))
            .await?;
        let applied = crontabs
            .apply(&CRONTABS, "alice", &v1(name, json!({"timeZone": "UTC"})))
            .await?;
        ensure!(applied.status == StatusCode::OK, "{applied:?}");
        crontabs
            .merge(
                &CRONTABS,
                &format!("{name}/status"),
                &json!({"status": {"missedRuns": 1}}),
            )
            .await?;
        crontabs.delete(&CRONTABS, name).await?;
    }
    ensure!(crontabs.list(&CRONTABS).await?.len() == 1, "the list is wrong");
    ensure!(server.requests() == 0, "it was called {} times", server.requests());
    Ok(())
}

/// A CA bundle without a certificate, which no validation has seen, breaks only the other version,
/// and a correct bundle repairs it.
#[tokio::test]
async fn test_webhook_conversion_whitespace_ca_bundle_etcd_bypass() -> Result<()> {
    let environment = Environment::start(ControlPlane::pooled().await?, &CRONTABS, &["--dry-run"]).await?;
    let Environment { daemon, plane } = &environment;
    let crontabs = CronTabs::of(&plane.namespace("whitespace").await?);
    crontabs.create(&CRONTABS, &v1("marker", json!({}))).await?;
    let definition = Definition::of(&crontabs.client, CronTab::crd_name());
    let mut stored = definition.get().await?;
    stored["spec"]["conversion"] = webhook(&by_url(&stored)?, " \n\t");
    let path = format!("apiextensions.k8s.io/customresourcedefinitions/{}", CronTab::crd_name());
    plane.store_unchecked(&path, &stored).await?;
    eventually(LIMIT, "the conversion to fail", || async {
        let read = crontabs.get(&CRONTABS_V2, "marker").await;
        ensure!(read.is_err(), "{read:?}");
        anyhow::Ok(())
    })
    .await?;
    crontabs.get(&CRONTABS, "marker").await?;
    crontabs.create(&CRONTABS, &v1("another", json!({}))).await?;
    definition.convert(&by_daemon(plane, daemon.webhooks.port)).await?;
    eventually(LIMIT, "the conversion to work", async || {
        crontabs.list(&CRONTABS_V2).await
    })
    .await?;
    Ok(())
}

/// Returns the URL of the webhook of a definition.
fn by_url(definition: &Value) -> Result<String> {
    let url = definition.pointer("/spec/conversion/webhook/clientConfig/url");
    Ok(url.and_then(Value::as_str).context("no URL")?.to_owned())
}
