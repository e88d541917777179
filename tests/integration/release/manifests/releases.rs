//! A release of the chart on a real apiserver: upgrades keep what the leader sets in the
//! configurations of webhooks, and helm deletes these first.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apps::v1::Deployment,
    core::v1::{Secret, Service, ServiceAccount},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use portreeve_testing::ControlPlane;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{kustomization, tools, webhooks::with_components};
use crate::fixtures::{LIMIT, manifests, repository::root};

const NAMESPACE: &str = "portreeve-system";
const CONFIGURATION: &str = "portreeve-webhooks.portreeve-system.portreeve";

/// Runs helm on the control plane.
fn helm(plane: &ControlPlane, args: &[&str]) -> Result<()> {
    let output = Command::new(tools()?.join("helm"))
        .args(args)
        .args(["--namespace", NAMESPACE, "--kubeconfig"])
        .arg(plane.kubeconfig())
        // Other control planes may have had the same address.
        .env("KUBECACHEDIR", plane.folder().join("kube-cache"))
        .env("HELM_CACHE_HOME", plane.folder().join("helm-cache"))
        .current_dir(root().join("deploy"))
        .output()
        .context("failed to run helm")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {args:?}: {errors}");
    Ok(())
}

/// Sets the caBundle of a webhook, as the leader does.
async fn set_bundle(configurations: &Api<ValidatingWebhookConfiguration>, bundle: &Value) -> Result<()> {
    let webhook = json!({"name": "foos.samplecontroller.k8s.io", "clientConfig": {"caBundle": bundle}});
    let patch = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION},
        "webhooks": [webhook],
    });
    let parameters = PatchParams::apply("the-leader");
    configurations
        .patch(CONFIGURATION, &parameters, &Patch::Apply(&patch))
        .await?;
    Ok(())
}

/// Returns the bundles and the paths of the webhooks.
async fn webhooks(configurations: &Api<ValidatingWebhookConfiguration>) -> Result<Vec<Value>> {
    let configuration = json!(configurations.get(CONFIGURATION).await?);
    let webhooks = configuration["webhooks"].as_array().context("there are no webhooks")?;
    Ok(webhooks
        .iter()
        .map(|webhook| webhook["clientConfig"]["caBundle"].clone())
        .collect())
}

/// Returns the version of the store at which the object was deleted.
async fn deleted_at<K>(api: Api<K>, name: &str, since: &str) -> Result<u64>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let parameters = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = Box::pin(api.watch(&parameters, since).await?);
    let deletion = async {
        loop {
            let event = events.try_next().await?.context("the watch ended")?;
            if let WatchEvent::Deleted(object) = event {
                let version = object.resource_version().context("the object has no version")?;
                return anyhow::Ok(version.parse()?);
            }
        }
    };
    let deletion = timeout(LIMIT, deletion).await;
    deletion.with_context(|| format!("{name} was not deleted"))?
}

fn namespaced<K>(client: &Client) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K::DynamicType: Default,
{
    Api::namespaced(client.clone(), NAMESPACE)
}

/// docs/deploying.md describes the switch.
#[tokio::test]
async fn a_release_takes_over_the_anchor_of_an_installation_with_kustomize() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = plane.client()?;
    let force = PatchParams::apply("kubectl").force();
    for anchor in kustomization("kustomize/fence-anchor")?.values() {
        manifests::apply(&client, anchor, None, &force).await?;
    }
    let install = ["install", "--create-namespace", "portreeve", "helm/portreeve"];
    let error = helm(&plane, &install).err().context("helm owns the anchor")?;
    let reason = "cannot be imported into the current release";
    ensure!(error.to_string().contains(reason), "{error:#}");
    helm(
        &plane,
        &[&install[..], &["--take-ownership", "--force-conflicts"]].concat(),
    )
}

#[tokio::test]
async fn upgrades_keep_the_bundles_and_helm_deletes_the_configurations_first() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let client = plane.client()?;
    let release = ["portreeve", "helm/portreeve", "--set=webhooks.enabled=true"];
    helm(&plane, &[&["install", "--create-namespace"], &release[..]].concat())?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let bundle = json!(data_encoding::BASE64.encode(plane.authority().pem().as_bytes()));
    set_bundle(&validating, &bundle).await?;
    let expected = vec![Value::Null, bundle];
    ensure!(webhooks(&validating).await? == expected);
    helm(
        &plane,
        &[&["upgrade"], &release[..], &["--set=webhooks.port=9444"]].concat(),
    )?;
    ensure!(webhooks(&validating).await? == expected, "helm removed a bundle");
    let force = PatchParams::apply("an-administrator").force();
    let component = with_components("'{deploy}/webhooks'")?;
    let key = format!("ValidatingWebhookConfiguration {CONFIGURATION}");
    manifests::apply(&client, &component[&key], None, &force).await?;
    ensure!(webhooks(&validating).await? == expected, "kubectl removed a bundle");

    let list = validating.list(&ListParams::default()).await?;
    let since = list.metadata.resource_version.context("the list has no version")?;
    helm(&plane, &["uninstall", "portreeve"])?;
    let configurations = [
        deleted_at(validating, CONFIGURATION, &since).await?,
        deleted_at(
            Api::<MutatingWebhookConfiguration>::all(client.clone()),
            CONFIGURATION,
            &since,
        )
        .await?,
    ];
    let others = [
        deleted_at(namespaced::<Service>(&client), "portreeve-webhook", &since).await?,
        deleted_at(namespaced::<Deployment>(&client), "portreeve", &since).await?,
        deleted_at(namespaced::<ServiceAccount>(&client), "portreeve", &since).await?,
        deleted_at(namespaced::<Secret>(&client), "portreeve-serving", &since).await?,
        deleted_at(Api::<ClusterRole>::all(client), "portreeve:webhooks", &since).await?,
    ];
    let order = configurations.iter().max() < others.iter().min();
    ensure!(order, "{configurations:?} and {others:?}");
    Ok(())
}
