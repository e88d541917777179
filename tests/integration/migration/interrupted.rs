//! `kubectl portreeve conversion enable` undoes its changes when it gets a signal.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams};
use portreeve_testing::{Fault, FaultProxy, Matcher, Process, Repeat, Signal, eventually};
use serde_json::{Value, json};

use super::{
    conversion::ensure_withdrawn,
    environment::{Gadgets, shared},
};
use crate::fixtures::LIMIT;

#[tokio::test]
async fn an_interrupted_check_withdraws_v2() -> Result<()> {
    let gadgets = shared().await?.gadgets("interrupted").await?;
    let [_, ca] = gadgets.webhook();
    let process = spawn_enable(&gadgets, &["--url=https://localhost:1", &ca]).await?;
    eventually(LIMIT, "v2 to be served for the check", || async {
        let versions = gadgets.versions().await?;
        ensure!(versions.starts_with("served v1 v2,"), "{versions}");
        anyhow::Ok(())
    })
    .await?;
    interrupt_at(
        &process,
        "checking v2",
        "so it is not served: the command was interrupted",
    )
    .await?;
    ensure_withdrawn(&gadgets).await
}

async fn spawn_enable(gadgets: &Gadgets<'_>, flags: &[&str]) -> Result<Process> {
    let flags = [&["conversion", "enable"], flags].concat();
    gadgets.spawn(shared().await?.plane.kubeconfig(), &flags)
}

/// Interrupts a command after this line, and checks its error.
async fn interrupt_at(process: &Process, line: &str, error: &str) -> Result<()> {
    process.wait_for_log(LIMIT, |logged| logged.contains(line)).await?;
    process.signal(Signal::INT)?;
    let status = process.wait(LIMIT).await?;
    let log = process.log_tail();
    ensure!(status.code() == Some(1) && log.contains(error), "{status}{log}");
    Ok(())
}

#[tokio::test]
async fn an_interrupted_wait_for_the_ca_serves_nothing() -> Result<()> {
    let gadgets = shared().await?.gadgets("interrupted-wait").await?;
    let [url, _] = gadgets.webhook();
    let process = spawn_enable(&gadgets, &[&url]).await?;
    interrupt_at(
        &process,
        "waiting for the CA",
        "so it is not served: the command was interrupted",
    )
    .await?;
    ensure_withdrawn(&gadgets).await
}

/// The webhook that is checked again is the one that serves v2, even if it is away at the moment.
#[tokio::test]
async fn an_interrupted_second_check_changes_nothing() -> Result<()> {
    let gadgets = shared().await?.gadgets("interrupted-again").await?;
    gadgets.enable().await?;
    let away = point_to_nobody(&gadgets).await?;
    let before = gadgets.definition().await?["spec"].take();
    let [_, ca] = gadgets.webhook();
    let process = spawn_enable(&gadgets, &[&format!("--url={away}"), &ca]).await?;
    interrupt_at(
        &process,
        "checking v2",
        "so it is served as before, without a check: the command was interrupted",
    )
    .await?;
    ensure!(gadgets.definition().await?["spec"] == before);
    Ok(())
}

/// Sets a webhook at which nobody answers, and returns its URL.
async fn point_to_nobody(gadgets: &Gadgets<'_>) -> Result<String> {
    let nobody = format!("https://localhost:1/convert/{}", gadgets.name());
    let patch = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"url": nobody}}}}});
    patch_definition(gadgets, &Patch::Merge(patch)).await?;
    Ok(nobody)
}

async fn patch_definition(gadgets: &Gadgets<'_>, patch: &Patch<Value>) -> Result<()> {
    let definitions = gadgets.definitions();
    definitions
        .patch(&gadgets.name(), &PatchParams::default(), patch)
        .await?;
    Ok(())
}

/// Somebody has withdrawn v2 although objects may be stored in it.
#[tokio::test]
async fn an_interrupted_check_of_a_withdrawn_version_withdraws_it_again() -> Result<()> {
    let gadgets = shared().await?.gadgets("interrupted-withdrawn").await?;
    gadgets.enable().await?;
    gadgets.succeed(&super::steps::FAST).await?;
    let away = point_to_nobody(&gadgets).await?;
    let mut definition = gadgets.definition().await?;
    let versions = definition["spec"]["versions"].as_array_mut().context("no versions")?;
    let index = versions.iter().position(|version| version["name"] == "v2");
    let path = format!("/spec/versions/{}/served", index.context("no v2")?);
    let withdrawn = json!([{"op": "replace", "path": path, "value": false}]);
    patch_definition(&gadgets, &Patch::Json(serde_json::from_value(withdrawn)?)).await?;
    let [_, ca] = gadgets.webhook();
    let process = spawn_enable(&gadgets, &[&format!("--url={away}"), &ca]).await?;
    interrupt_at(
        &process,
        "checking v2",
        "so it is not served: the command was interrupted",
    )
    .await?;
    let versions = gadgets.versions().await?;
    ensure!(versions.starts_with("served v1, storage v2"), "{versions}");
    Ok(())
}

/// Starts the command through a proxy, and holds the request that serves v2.
async fn hold_the_change(gadgets: &Gadgets<'_>, fault: Fault) -> Result<(Process, FaultProxy)> {
    let plane = &shared().await?.plane;
    let proxy = FaultProxy::start(plane).await?;
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), &gadgets.name())?;
    let [url, _] = gadgets.webhook();
    let process = gadgets.spawn(&kubeconfig, &["conversion", "enable", &url])?;
    let waiting = |line: &str| line.contains("waiting for the CA");
    process.wait_for_log(LIMIT, waiting).await?;
    let write = Matcher::writes().resource("customresourcedefinitions");
    let held = proxy.fault(write, fault, Repeat::Next(1));
    let ca = ByteString(plane.authority().pem().into_bytes());
    let bundle = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"caBundle": ca}}}}});
    patch_definition(gadgets, &Patch::Merge(bundle)).await?;
    held.wait_for_applied(1, LIMIT).await?;
    Ok((process, proxy))
}

#[tokio::test]
async fn a_change_in_flight_is_undone() -> Result<()> {
    let gadgets = shared().await?.gadgets("interrupted-change").await?;
    let (process, _proxy) = hold_the_change(&gadgets, Fault::DelayRequest(Duration::from_secs(3))).await?;
    process.signal(Signal::TERM)?;
    let status = process.wait(LIMIT).await?;
    let log = process.log_tail();
    ensure!(
        log.contains("interrupted: undoing the changes") && log.contains("so it is not served"),
        "{status}{log}"
    );
    ensure_withdrawn(&gadgets).await
}

#[tokio::test]
async fn a_second_signal_ends_the_command_at_once() -> Result<()> {
    let gadgets = shared().await?.gadgets("interrupted-twice").await?;
    let (process, _proxy) = hold_the_change(&gadgets, Fault::BlackHole).await?;
    process.signal(Signal::INT)?;
    process.signal(Signal::TERM)?;
    let status = process.wait(LIMIT).await?;
    let log = process.log_tail();
    ensure!(
        status.code() == Some(1)
            && log.contains("the command was interrupted twice")
            && log.contains(r#"the conversion was {"strategy":"None"}"#),
        "{status}{log}"
    );
    Ok(())
}
