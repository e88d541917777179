//! The rights on CustomResourceDefinitions, which are as good as those on all their objects.

use anyhow::{Result, ensure};
use http::{Method, StatusCode};
use kube::{
    Client, Config, CustomResourceExt,
    config::{KubeConfigOptions, Kubeconfig},
};
use portreeve_api::CRDS;
use portreeve_crontab::api::CronTab;
use portreeve_foo::api::Foo;
use portreeve_testing::ControlPlane;
use serde_json::json;

use crate::fixtures::{rbac::restricted_kubeconfig, webhooks::request};

const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test]
async fn only_the_definitions_of_the_controllers_can_be_written() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let kubeconfig = restricted_kubeconfig(&plane, &["--controllers=foo", "--install-crds"]).await?;
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let all = CRDS.collection_path(None);
    let path = |name: &str| format!("{all}/{name}?fieldManager=test&force=true");
    let (foo, crontab) = (json!(Foo::crd()), json!(CronTab::crd()));

    let created = request(&client, Method::POST, &all, "application/json", &foo).await?;
    ensure!(created.status == StatusCode::FORBIDDEN, "{created:?}");
    let applied = request(&client, Method::PATCH, &path(CronTab::crd_name()), APPLY, &crontab).await?;
    ensure!(applied.status == StatusCode::FORBIDDEN, "{applied:?}");
    let applied = request(&client, Method::PATCH, &path(Foo::crd_name()), APPLY, &foo).await?;
    ensure!(applied.status == StatusCode::CREATED, "{applied:?}");

    // Also one that exists.
    let admin = plane.client()?;
    let created = request(&admin, Method::POST, &all, "application/json", &crontab).await?;
    ensure!(created.status == StatusCode::CREATED, "{created:?}");
    let applied = request(&client, Method::PATCH, &path(CronTab::crd_name()), APPLY, &crontab).await?;
    ensure!(applied.status == StatusCode::FORBIDDEN, "{applied:?}");
    let deleted = format!("{all}/{}", CronTab::crd_name());
    let deleted = request(&client, Method::DELETE, &deleted, "application/json", &json!(null)).await?;
    ensure!(deleted.status == StatusCode::FORBIDDEN, "{deleted:?}");
    Ok(())
}
