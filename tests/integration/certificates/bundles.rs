//! `--tls-ca-bundles`: the leader sets the CA bundles of webhook configurations and definitions.

use anyhow::{Context, Result, ensure};
use portreeve_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::{
    FLAGS, Objects,
    webhooks::{Bundles, CHECKS, CONVERTED, DEFAULTS, UNCONVERTED, configuration},
};
use crate::fixtures::{LIMIT, daemon::Daemon, rbac::restricted_kubeconfig};

/// An object that exists later.
const LATER: &str = "mutatingwebhookconfigurations/later";

/// Returns what the controller owns in an object.
fn owned(object: &Value) -> Result<&Value> {
    let managers = object["metadata"]["managedFields"].as_array().context("no managers")?;
    let ours = managers
        .iter()
        .find(|entry| entry["manager"] == "serving-certificate-controller");
    let ours = ours.context("the controller owns nothing")?;
    ensure!(ours["operation"] == "Apply", "{ours}");
    Ok(&ours["fieldsV1"])
}

/// Returns an object without its bundles, versions and managers.
fn without_bundles(mut object: Value) -> Value {
    for field in ["managedFields", "generation", "resourceVersion"] {
        object["metadata"][field].take();
    }
    object["status"].take();
    let remove = |webhook: &mut Value| {
        let config = webhook["clientConfig"].as_object_mut();
        config.map(|config| config.remove("caBundle"));
    };
    object["webhooks"].as_array_mut().into_iter().flatten().for_each(remove);
    if let Some(webhook) = object.pointer_mut("/spec/conversion/webhook") {
        remove(webhook);
    }
    object
}

/// Removes or replaces bundles, as other writers might, and waits for the repair.
async fn ensure_repaired(bundles: &Bundles, authority: &str) -> Result<()> {
    let foreign = data_encoding::BASE64.encode(ControlPlane::shared().await.authority().pem().as_bytes());
    let replace = |path: &str| json!([{"op": "replace", "path": path, "value": foreign}]);
    bundles
        .patch(DEFAULTS, replace("/webhooks/0/clientConfig/caBundle"))
        .await?;
    bundles
        .patch(
            CHECKS,
            json!([{"op": "remove", "path": "/webhooks/1/clientConfig/caBundle"}]),
        )
        .await?;
    bundles
        .patch(CONVERTED, replace("/spec/conversion/webhook/clientConfig/caBundle"))
        .await?;
    bundles
        .wait_until_all_are(&[DEFAULTS, CHECKS, CONVERTED], authority)
        .await
}

/// The account has the printed permissions and no others.
#[tokio::test]
async fn the_leader_sets_and_repairs_ca_bundles_and_nothing_else() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (objects, bundles) = (Objects::new(&plane.client()?), Bundles::new(plane.client()?));
    objects.create_namespace().await?;
    bundles.create().await?;
    let all = [DEFAULTS, CHECKS, CONVERTED];
    let mut before = Vec::new();
    for location in all {
        before.push(without_bundles(bundles.get(location).await?));
    }
    let unconverted = bundles.get(UNCONVERTED).await?;
    let listed = format!("--tls-ca-bundles={},{UNCONVERTED},{LATER}", all.join(","));
    let flags = [&FLAGS[..], &[&*listed]].concat();
    let kubeconfig = restricted_kubeconfig(&plane, &flags).await?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "leader", &flags).await?;
    let authority = objects.wait_for_authority().await?;
    bundles.wait_until_all_are(&all, &authority).await?;

    let fields = json!({".": {}, "f:name": {}, "f:clientConfig": {"f:caBundle": {}}});
    let [a, b] = ["a", "b"].map(|name| format!(r#"k:{{"name":"{name}.example.com"}}"#));
    let expected = [
        json!({"f:webhooks": {a.clone(): fields}}),
        json!({"f:webhooks": {a: fields, b: fields}}),
        json!({"f:spec": {"f:conversion": {"f:webhook": {"f:clientConfig": {"f:caBundle": {}}}}}}),
    ];
    for ((location, before), expected) in all.into_iter().zip(before).zip(expected) {
        let object = bundles.get(location).await?;
        ensure!(*owned(&object)? == expected, "{location}: {object:#}");
        ensure!(without_bundles(object) == before, "{location}: {before:#}");
    }
    ensure_repaired(&bundles, &authority).await?;
    objects.wait_for_event(&format!("{LATER} does not exist")).await?;
    bundles.apply(&configuration(LATER, &["a.example.com"])).await?;
    bundles.wait_until_all_are(&[LATER], &authority).await?;
    // A definition without a webhook is not written.
    ensure!(bundles.get(UNCONVERTED).await?["metadata"]["managedFields"] == unconverted["metadata"]["managedFields"]);
    let log = daemon.log()?;
    ensure!(!log.contains("PRIVATE") && !log.contains("forbidden"), "{log}");
    Ok(())
}

/// The account may read every definition, but not write the one that converts.
#[tokio::test]
async fn a_bundle_that_may_not_be_written_delays_no_other() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (objects, bundles) = (Objects::new(&plane.client()?), Bundles::new(plane.client()?));
    objects.create_namespace().await?;
    objects.create_config_map().await?;
    bundles.create().await?;
    let granted = format!("--tls-ca-bundles={CHECKS},{DEFAULTS}");
    let kubeconfig = restricted_kubeconfig(&plane, &[&FLAGS[..], &[&*granted]].concat()).await?;
    let listed = format!("--tls-ca-bundles={CHECKS},{CONVERTED},{DEFAULTS}");
    let flags = [&FLAGS[..], &[&*listed]].concat();
    let _daemon = Daemon::start_as(&plane, &kubeconfig, "leader", &flags).await?;
    let event = objects.wait_for_event("customresourcedefinitions").await?;
    ensure!(event.contains("forbidden"), "{event}");
    let data = eventually(LIMIT, "a CA in the Secret", || async {
        let data = objects.data().await?;
        ensure!(data.contains_key("ca.crt"), "there is none");
        anyhow::Ok(data)
    })
    .await?;
    let authority = std::str::from_utf8(&data["ca.crt"].0)?;
    bundles.wait_until_all_are(&[CHECKS, DEFAULTS], authority).await?;
    ensure!(bundles.read(CONVERTED).await? == [""]);
    Ok(())
}

/// An apply of a configuration without a webhook does not remove it, because the bundle in it has
/// another manager. So it must be removed before.
#[tokio::test]
async fn webhooks_can_be_added_and_removed() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let (objects, bundles) = (Objects::new(&plane.client()?), Bundles::new(plane.client()?));
    objects.create_namespace().await?;
    bundles.create().await?;
    let listed = format!("--tls-ca-bundles={CHECKS},{CONVERTED}");
    let _daemon = Daemon::start(&plane, "leader", &[&FLAGS[..], &[&*listed]].concat()).await?;
    let authority = objects.wait_for_authority().await?;
    bundles.wait_until_all_are(&[CHECKS, CONVERTED], &authority).await?;

    let names = ["a.example.com", "b.example.com", "c.example.com"];
    bundles.apply(&configuration(CHECKS, &names)).await?;
    bundles.wait_until_all_are(&[CHECKS], &authority).await?;
    let rejected = bundles.apply(&configuration(CHECKS, &names[..2])).await;
    let error = rejected.err().context("the apply removed the webhook")?;
    ensure!(format!("{error:#}").contains("webhooks[2]"), "{error:#}");
    bundles
        .patch(CHECKS, json!([{"op": "remove", "path": "/webhooks/2"}]))
        .await?;
    bundles.apply(&configuration(CHECKS, &names[..2])).await?;
    bundles
        .patch(
            CHECKS,
            json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]),
        )
        .await?;
    bundles.wait_until_all_are(&[CHECKS], &authority).await?;
    let object = bundles.get(CHECKS).await?;
    let webhooks = object["webhooks"].as_array().context("no webhooks")?;
    ensure!(webhooks.len() == 2, "{webhooks:#?}");

    // A definition leaves the conversion in one step.
    bundles
        .patch(
            CONVERTED,
            json!([{"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}}]),
        )
        .await?;
    eventually(LIMIT, "no conversion", || async {
        let object = bundles.get(CONVERTED).await?;
        let conversion = &object["spec"]["conversion"];
        ensure!(*conversion == json!({"strategy": "None"}), "{conversion}");
        anyhow::Ok(())
    })
    .await
}
