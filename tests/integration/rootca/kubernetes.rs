//! A test of Kubernetes, by its name: the spec in `test/e2e/auth/service_accounts.go`.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::profile::{NAME, wait_for_map};
use crate::bare_plane::{bare_plane, tenant};

/// `should guarantee kube-root-ca.crt exist in any namespace`.
#[tokio::test]
async fn should_guarantee_kube_root_ca_crt_exist_in_any_namespace() -> Result<()> {
    let tenant = tenant("root-ca").await?;
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client().clone(), tenant.name());
    let map = wait_for_map(&maps, None).await?;
    let published = map.data.unwrap_or_default().remove("ca.crt").unwrap_or_default();
    // The lines of PEM may end with a carriage return.
    let lines = |pem: &str| pem.lines().map(str::to_owned).collect::<Vec<_>>();
    ensure!(
        lines(&published) == lines(&bare_plane().await?.plane.authority().pem()),
        "{published}"
    );
    maps.delete(NAME, &DeleteParams::default()).await?;
    wait_for_map(&maps, map.metadata.uid.as_deref()).await?;
    let emptied = json!({"metadata": {"name": NAME}, "data": {"ca.crt": ""}});
    maps.replace(NAME, &PostParams::default(), &serde_json::from_value(emptied)?)
        .await?;
    wait_for_map(&maps, None).await?;
    Ok(())
}

/// What others have added to the metadata stays, and their data does not.
#[tokio::test]
async fn only_the_data_is_replaced() -> Result<()> {
    let tenant = tenant("root-ca-metadata").await?;
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client().clone(), tenant.name());
    wait_for_map(&maps, None).await?;
    let patch = json!({
        "metadata": {
            "labels": {"a": "b"},
            "annotations": {"kubernetes.io/description": "a text", "c": "d"},
            "finalizers": ["example.com/a-test"],
        },
        "data": {"other": "x", "ca.crt": "wrong"},
    });
    maps.patch(NAME, &PatchParams::default(), &Patch::Merge(patch)).await?;
    let map = wait_for_map(&maps, None).await?;
    ensure!(map.labels()["a"] == "b" && map.annotations()["c"] == "d", "{map:?}");
    ensure!(map.annotations()["kubernetes.io/description"] == "a text", "{map:?}");
    ensure!(map.finalizers() == ["example.com/a-test"], "{map:?}");
    Ok(())
}
