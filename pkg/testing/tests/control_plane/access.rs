//! Tests of the namespaces, clients and kubeconfigs that a shared control plane provides.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use portreeve_testing::ControlPlane;
use serde_json::{from_value, json};

fn config_map(name: &str) -> Result<ConfigMap> {
    Ok(from_value(
        json!({"metadata": {"name": name}, "data": {"key": "value"}}),
    )?)
}

fn read_config_maps() -> Vec<PolicyRule> {
    let of = |value: &str| vec![value.to_owned()];
    vec![PolicyRule {
        api_groups: Some(of("")),
        resources: Some(of("configmaps")),
        verbs: vec!["get".to_owned(), "list".to_owned()],
        ..PolicyRule::default()
    }]
}

#[tokio::test]
async fn namespaces_with_the_same_prefix_are_separate() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let (one, other) = (plane.namespace("apart").await?, plane.namespace("apart").await?);
    ensure!(one.name() != other.name(), "both are named {}", one.name());
    ensure!(one.name().starts_with("apart-"), "{} lacks its prefix", one.name());
    one.api::<ConfigMap>()
        .create(&PostParams::default(), &config_map("here")?)
        .await?;
    ensure!(other.api::<ConfigMap>().get_opt("here").await?.is_none());
    Ok(())
}

#[tokio::test]
async fn the_default_namespace_exists_at_once() -> Result<()> {
    let client = ControlPlane::shared().await.client()?;
    let config_maps: Api<ConfigMap> = Api::default_namespaced(client);
    config_maps
        .create(&PostParams::default(), &config_map("in-default")?)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_service_account_has_exactly_its_rules() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("rights").await?;
    let client = plane
        .service_account_client(namespace.name(), "reader", read_config_maps())
        .await?;
    let config_maps: Api<ConfigMap> = Api::all(client.clone());
    config_maps
        .list(&ListParams::default())
        .await
        .context("the rules of the account allow this request")?;
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace.name());
    ensure!(is_forbidden(
        config_maps.create(&PostParams::default(), &config_map("mine")?).await
    ));
    let secrets: Api<Secret> = Api::namespaced(client, namespace.name());
    ensure!(is_forbidden(secrets.list(&ListParams::default()).await));
    Ok(())
}

#[tokio::test]
async fn kubeconfigs_on_disk_grant_the_rights_of_their_users() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("kubeconfig").await?;
    let admin = client_of(plane.kubeconfig()).await?;
    Api::<Secret>::all(admin)
        .list(&ListParams::default())
        .await
        .context("an administrator may list secrets")?;
    // The second grant changes nothing.
    plane
        .service_account_client(namespace.name(), "reader", read_config_maps())
        .await?;
    let path = plane
        .service_account_kubeconfig(namespace.name(), "reader", read_config_maps())
        .await?;
    let reader = client_of(&path).await?;
    Api::<ConfigMap>::all(reader.clone())
        .list(&ListParams::default())
        .await
        .context("the rules of the account allow this request")?;
    ensure!(is_forbidden(
        Api::<Secret>::all(reader).list(&ListParams::default()).await
    ));
    Ok(())
}

#[test]
fn the_build_script_and_this_crate_find_the_same_servers() -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../hack/controlplane/build");
    for server in ["etcd", "kube-apiserver"] {
        let found = portreeve_testing::server_binary(server)?;
        let output = Command::new(script).arg(server).output()?;
        let folder = String::from_utf8(output.stdout)?;
        ensure!(
            Some(folder.trim_end()) == found.parent().and_then(|path| path.to_str()),
            "the script names {folder}, the crate finds {found:?}"
        );
    }
    Ok(())
}

async fn client_of(kubeconfig: &std::path::Path) -> Result<Client> {
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn is_forbidden<T>(outcome: kube::Result<T>) -> bool {
    matches!(outcome, Err(kube::Error::Api(status)) if status.code == 403)
}
