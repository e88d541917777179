//! `kubectl portreeve conversion enable` serves v2 only if its conversion works.

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::environment::{Gadgets, shared};
use crate::fixtures::LIMIT;

/// Returns the flags of the command with these of the webhook.
fn enable(flags: &[String]) -> Vec<&str> {
    let flags = flags.iter().map(String::as_str);
    ["conversion", "enable", "--timeout=10s"]
        .into_iter()
        .chain(flags)
        .collect()
}

pub(super) async fn ensure_withdrawn(gadgets: &Gadgets<'_>) -> Result<()> {
    let versions = gadgets.versions().await?;
    ensure!(versions == "served v1, storage v1, [\"v1\"]", "{versions}");
    // Nothing is converted, so v1 works as before.
    gadgets.create("v1", "unaffected", json!({"size": 1})).await
}

#[tokio::test]
async fn v2_is_served_once_its_webhook_has_a_ca() -> Result<()> {
    let environment = shared().await?;
    let gadgets = environment.gadgets("late-ca").await?;
    let [url, _] = gadgets.webhook();
    let flags = ["conversion", "enable", &url];
    let process = gadgets.spawn(environment.plane.kubeconfig(), &flags)?;
    let waiting = |line: &str| line.contains("waiting for the CA");
    process.wait_for_log(LIMIT, waiting).await?;
    let definition = gadgets.definition().await?;
    ensure!(
        definition["spec"]["conversion"]["strategy"] == "Webhook",
        "{definition}"
    );
    ensure!(gadgets.versions().await?.starts_with("served v1,"));

    // The leader does so with --tls-ca-bundles.
    let ca = k8s_openapi::ByteString(environment.plane.authority().pem().into_bytes());
    let config = json!({"clientConfig": {"caBundle": ca}});
    let bundle = Patch::Merge(json!({"spec": {"conversion": {"webhook": config}}}));
    gadgets
        .definitions()
        .patch(&gadgets.name(), &PatchParams::default(), &bundle)
        .await?;
    let status = process.wait(LIMIT).await?;
    ensure!(status.success(), "{status}{}", process.log_tail());
    ensure!(gadgets.versions().await? == "served v1 v2, storage v1, [\"v1\"]");
    // The second run changes nothing, and keeps the CA.
    let before = gadgets.definition().await?;
    let printed = gadgets.succeed(&flags).await?;
    ensure!(printed.contains("is served, and its conversion works"), "{printed}");
    ensure!(gadgets.definition().await? == before);
    Ok(())
}

#[tokio::test]
async fn a_webhook_that_does_not_answer_withdraws_v2() -> Result<()> {
    let gadgets = shared().await?.gadgets("unanswered").await?;
    let [_, ca] = gadgets.webhook();
    let nobody = ["--url=https://localhost:1".to_owned(), ca];
    // Without any object, an object is only tried.
    let (_, error) = gadgets.fail(&enable(&nobody)).await?;
    ensure!(
        error.contains("so it is not served") && error.contains("connection refused"),
        "{error}"
    );
    ensure_withdrawn(&gadgets).await?;
    let (_, error) = gadgets.fail(&enable(&nobody)).await?;
    ensure!(error.contains("connection refused"), "{error}");
    let versions = gadgets.versions().await?;
    ensure!(versions.starts_with("served v1,"), "{versions}");
    Ok(())
}

#[tokio::test]
async fn a_conversion_that_loses_data_withdraws_v2() -> Result<()> {
    let gadgets = shared().await?.gadgets("lossy").await?;
    let lossy = gadgets.webhook_at("lossy");
    let sample = std::env::temp_dir().join(format!("portreeve-sample-{}.yaml", std::process::id()));
    std::fs::write(&sample, "spec:\n  capacity: 3\n")?;
    let flags = [&lossy[..], &[format!("--sample={}", sample.display())]].concat();
    let (_, error) = gadgets.fail(&enable(&flags)).await?;
    std::fs::remove_file(&sample)?;
    ensure!(
        error.contains("the conversion loses or changes .spec.capacity"),
        "{error}"
    );
    ensure_withdrawn(&gadgets).await?;
    // With an object, that object is read and written.
    let (_, error) = gadgets.fail(&enable(&lossy)).await?;
    ensure!(
        error.contains("the conversion loses or changes .spec.capacity"),
        "{error}"
    );
    let object = gadgets.api("v1").get("unaffected").await?;
    ensure!(object.data["spec"] == json!({"size": 1}), "the check wrote: {object:?}");
    Ok(())
}

#[tokio::test]
async fn a_ca_that_nobody_sets_is_reported() -> Result<()> {
    let gadgets = shared().await?.gadgets("no-ca").await?;
    let [url, _] = gadgets.webhook();
    let (_, error) = gadgets.fail(&["conversion", "enable", &url, "--timeout=1s"]).await?;
    let flag = format!("--tls-ca-bundles=customresourcedefinitions/{}", gadgets.name());
    ensure!(error.contains(&flag) && error.contains("--ca-file"), "{error}");
    ensure_withdrawn(&gadgets).await?;
    // A file that somebody else is writing may be empty.
    let (_, error) = gadgets
        .fail(&["conversion", "enable", &url, "--ca-file=/dev/null"])
        .await?;
    ensure!(error.contains("no certificate in /dev/null"), "{error}");
    Ok(())
}

/// Without a CA, the apiserver trusts the roots of its system. A public CA may have signed the
/// certificate of a webhook that is in use, so it is checked at once.
#[tokio::test]
async fn a_webhook_in_use_needs_no_ca() -> Result<()> {
    let gadgets = shared().await?.gadgets("public-ca").await?;
    gadgets.enable().await?;
    let removed = json!([{"op": "remove", "path": "/spec/conversion/webhook/clientConfig/caBundle"}]);
    let removed = Patch::<()>::Json(serde_json::from_value(removed)?);
    gadgets
        .definitions()
        .patch(&gadgets.name(), &PatchParams::default(), &removed)
        .await?;
    let [url, _] = gadgets.webhook();
    let (_, error) = gadgets.fail(&["conversion", "enable", &url, "--timeout=5s"]).await?;
    ensure!(
        error.contains("certificate") && !error.contains("caBundle was not set"),
        "{error}"
    );
    ensure_withdrawn(&gadgets).await
}

#[tokio::test]
async fn v2_is_not_withdrawn_while_objects_are_stored_in_it() -> Result<()> {
    let gadgets = shared().await?.gadgets("still-stored").await?;
    gadgets.create("v1", "a", json!({"size": 1})).await?;
    gadgets.enable().await?;
    gadgets.succeed(&super::steps::FAST).await?;
    let before = gadgets.definition().await?;
    let (_, error) = gadgets.fail(&["conversion", "disable"]).await?;
    ensure!(
        error.contains("run `kubectl portreeve migrate --to=v1` first"),
        "{error}"
    );
    ensure!(gadgets.definition().await? == before);
    // Nor by a webhook that does not work any more: nobody could read v1 either way.
    let nobody = format!("https://localhost:1/convert/{}", gadgets.name());
    let broken = json!({"spec": {"conversion": {"webhook": {"clientConfig": {"url": nobody}}}}});
    gadgets
        .definitions()
        .patch(&gadgets.name(), &PatchParams::default(), &Patch::Merge(broken))
        .await?;
    let [_, ca] = gadgets.webhook();
    let nobody = [format!("--url={nobody}"), ca];
    let (_, error) = gadgets.fail(&enable(&nobody)).await?;
    ensure!(error.contains("cannot be read in other versions"), "{error}");
    ensure!(gadgets.versions().await? == "served v1 v2, storage v2, [\"v2\"]");
    gadgets.enable().await?;
    ensure!(gadgets.api("v1").get("a").await?.data["spec"] == json!({"size": 1}));
    Ok(())
}

#[tokio::test]
async fn a_webhook_that_does_not_work_does_not_replace_one_that_works() -> Result<()> {
    let gadgets = shared().await?.gadgets("replaced").await?;
    gadgets.create("v1", "a", json!({"size": 1})).await?;
    gadgets.enable().await?;
    let [_, ca] = gadgets.webhook();
    let nobody = ["--url=https://localhost:1".to_owned(), ca];
    for storage in ["v1", "v2"] {
        let before = gadgets.definition().await?["spec"].take();
        let (_, error) = gadgets.fail(&enable(&nobody)).await?;
        ensure!(error.contains("the former conversion webhook is used again"), "{error}");
        ensure!(gadgets.definition().await?["spec"] == before, "stored in {storage}");
        for version in ["v1", "v2"] {
            gadgets.wait_until_served(version).await?;
            gadgets.api(version).get("a").await?;
        }
        gadgets.succeed(&super::steps::FAST).await?;
    }
    Ok(())
}
