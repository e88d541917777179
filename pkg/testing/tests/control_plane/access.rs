//! Tests of the clients and kubeconfigs that a shared control plane provides.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use portreeve_testing::ControlPlane;

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
async fn clients_and_kubeconfigs_have_exactly_the_rights_of_their_users() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let namespace = plane.namespace("kubeconfig").await?;
    let admin = client_of(plane.kubeconfig()).await?;
    Api::<Secret>::all(admin)
        .list(&ListParams::default())
        .await
        .context("an administrator may list secrets")?;
    // The second grant changes nothing.
    let client = plane
        .service_account_client(namespace.name(), "reader", read_config_maps())
        .await?;
    let path = plane
        .service_account_kubeconfig(namespace.name(), "reader", read_config_maps())
        .await?;
    for reader in [client, client_of(&path).await?] {
        let config_maps: Api<ConfigMap> = Api::namespaced(reader.clone(), namespace.name());
        config_maps
            .list(&ListParams::default())
            .await
            .context("the rules of the account allow this request")?;
        ensure!(is_forbidden(
            config_maps.create(&PostParams::default(), &ConfigMap::default()).await
        ));
        ensure!(is_forbidden(
            Api::<Secret>::all(reader).list(&ListParams::default()).await
        ));
    }
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
