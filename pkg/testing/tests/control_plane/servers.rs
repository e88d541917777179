//! Tests of stopping, killing, pausing and compacting.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, from_value, json};
use tokio::time::timeout;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// Long enough for a running server to respond, and short enough to wait for a missing response.
const NO_RESPONSE: Duration = Duration::from_secs(1);

fn config_map(name: &str) -> Result<ConfigMap> {
    Ok(from_value(json!({"metadata": {"name": name}}))?)
}

#[tokio::test]
async fn the_apiserver_keeps_its_data_through_a_stop_and_a_crash() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let namespace = plane.namespace("restart").await?;
    let config_maps = namespace.api::<ConfigMap>();
    config_maps.create(&PostParams::default(), &config_map("kept")?).await?;

    let first = plane.apiserver().pid()?;
    let status = plane.apiserver().stop().await?;
    ensure!(status.success(), "the apiserver did not stop after SIGTERM: {status}");
    ensure!(
        plane.apiserver().pid().is_err() && plane.apiserver().stop().await.is_err(),
        "the stopped apiserver has a pid or can be stopped again"
    );
    config_maps
        .get("kept")
        .await
        .err()
        .context("the stopped apiserver responded")?;
    plane.apiserver().start().await?;
    ensure!(
        plane.apiserver().pid()? != first && plane.apiserver().start().await.is_err(),
        "the apiserver has its old pid or can be started twice"
    );
    config_maps.get("kept").await?;

    plane.apiserver().kill().await?;
    plane.etcd().kill().await?;
    plane.etcd().start().await?;
    plane.apiserver().start().await?;
    config_maps.get("kept").await?;

    plane.etcd().restart().await?;
    eventually(LIMIT, "the apiserver to reach etcd again", || config_maps.get("kept")).await?;
    Ok(())
}

#[tokio::test]
async fn a_paused_server_does_not_respond_until_resumed() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let namespace = plane.namespace("pause").await?;
    let config_maps = namespace.api::<ConfigMap>();

    plane.etcd().pause()?;
    let (write, object) = (PostParams::default(), config_map("late")?);
    let without_response = timeout(NO_RESPONSE, config_maps.create(&write, &object)).await;
    ensure!(
        without_response.is_err(),
        "a write got the response {without_response:?} while etcd is paused"
    );
    plane.etcd().resume()?;
    eventually(LIMIT, "a write after etcd was resumed", || {
        config_maps.create(&write, &object)
    })
    .await
    .or_else(|error| {
        // The write without a response may have succeeded by now.
        if error.to_string().contains("AlreadyExists") {
            Ok(object.clone())
        } else {
            Err(error)
        }
    })?;

    plane.apiserver().pause()?;
    let without_response = timeout(NO_RESPONSE, config_maps.get("late")).await;
    ensure!(
        without_response.is_err(),
        "a read got the response {without_response:?} while the apiserver is paused"
    );
    plane.apiserver().resume()?;
    eventually(LIMIT, "a read after the apiserver was resumed", || {
        config_maps.get("late")
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_watch_from_before_a_compaction_expires_after_a_restart() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let namespace = plane.namespace("compact").await?;
    let config_maps: Api<ConfigMap> = namespace.api();
    let old = config_maps
        .create(&PostParams::default(), &config_map("first")?)
        .await?;
    let old = old.resource_version().context("the object has no version")?;
    for name in ["second", "third"] {
        config_maps.create(&PostParams::default(), &config_map(name)?).await?;
    }
    let kept = plane.compact().await?;
    ensure!(
        kept > old.parse()?,
        "compacted to revision {kept}, which is not after {old}"
    );
    plane.apiserver().restart().await?;

    let mut events = config_maps.watch(&WatchParams::default(), &old).await?.boxed();
    match timeout(LIMIT, events.next())
        .await?
        .context("the watch ended without an event")?
    {
        Ok(WatchEvent::Error(status)) if status.code == 410 => {}
        Err(kube::Error::Api(status)) if status.code == 410 => {}
        other => bail!("expected 410, got {other:?}"),
    }
    ensure!(
        config_maps.list(&ListParams::default()).await?.items.len() >= 3,
        "the compaction removed current objects"
    );
    Ok(())
}

#[tokio::test]
async fn the_audit_log_contains_every_request_with_a_response() -> Result<()> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "RequestResponse", "resources": [{"group": "", "resources": ["configmaps"]}], "verbs": ["create"]},
            {"level": "Metadata"},
        ],
    });
    let plane = ControlPlane::builder()
        .audit_policy(policy.to_string())
        .apiserver_arg("--v=3")
        .start()
        .await?;
    let namespace = plane.namespace("audit").await?;
    namespace
        .api::<ConfigMap>()
        .create(&PostParams::default(), &config_map("noted")?)
        .await?;
    let log = fs::read_to_string(plane.audit_log().context("the control plane has no audit log")?)?;
    let events = log
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Value>, _>>()?;
    let created = |event: &&Value| event["verb"] == "create" && event["objectRef"]["name"] == "noted";
    let event = events.iter().find(created).context("the create is not in the log")?;
    ensure!(
        event["responseObject"]["metadata"]["uid"].is_string(),
        "the event lacks the response: {event}"
    );
    Ok(())
}
