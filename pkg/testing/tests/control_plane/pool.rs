//! Tests of the pool of control planes.

use std::fs;
use std::thread;

use anyhow::{Context, Result, ensure};
use http::Request;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client};
use portreeve_testing::{Builder, ControlPlane, LIMIT, PooledPlane, eventually};
use serde_json::{Value, from_value, json};

/// Options that no other test has, so that no other test takes the plane in between.
fn options(number: u32) -> Builder {
    ControlPlane::builder().apiserver_arg(format!("--max-requests-inflight={}", 400 + number))
}

/// Returns a plane at once, because the thread has no runtime that has to end first.
fn give_back(plane: PooledPlane) -> Result<()> {
    let dropped = thread::spawn(move || drop(plane)).join();
    ensure!(dropped.is_ok(), "the thread panicked");
    Ok(())
}

/// Returns the definition of Leftovers.
fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "leftovers.example.com"},
        "spec": {
            "group": "example.com",
            "names": {"kind": "Leftover", "plural": "leftovers"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    })
}

/// Creates a Leftover and a namespace that cannot be deleted by a request alone.
async fn leave_namespace(client: &Client) -> Result<()> {
    let kind = GroupVersionKind::gvk("example.com", "v1", "Leftover");
    let resource = ApiResource::from_gvk_with_plural(&kind, "leftovers");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = from_value(json!({"metadata": {"name": "left"}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    let leftovers: Api<DynamicObject> = Api::namespaced_with(client.clone(), "left", &resource);
    let leftover: DynamicObject = from_value(json!({
        "apiVersion": "example.com/v1", "kind": "Leftover",
        "metadata": {"name": "left", "finalizers": ["example.com/never"]},
    }))?;
    eventually(LIMIT, "the custom resource to be created", || async {
        leftovers.create(&PostParams::default(), &leftover).await
    })
    .await?;
    leftovers.delete("left", &DeleteParams::default()).await?;
    namespaces.delete("left", &DeleteParams::default()).await?;
    Ok(())
}

/// Deletes a role, and leaves a namespace, a definition and its object, a file, and a webhook that
/// rejects Secrets. Returns the process of the apiserver.
async fn leave_everything() -> Result<u32> {
    let plane = options(1).pooled().await?;
    let client = plane.client()?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PostParams::default();
    definitions.create(&params, &from_value(definition())?).await?;
    leave_namespace(&client).await?;
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.delete("view", &DeleteParams::default()).await?;
    fs::write(plane.folder().join("left.log"), "left")?;
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let webhook = from_value(json!({
        "metadata": {"name": "left"},
        "webhooks": [{
            "name": "left.portreeve.example",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}],
            "sideEffects": "None",
        }],
    }))?;
    webhooks.create(&params, &webhook).await?;
    eventually(LIMIT, "the webhook to be called", || async {
        ensure!(create_secret(&plane).await.is_err(), "the secret was created");
        anyhow::Ok(())
    })
    .await?;
    plane.apiserver().pid()
}

async fn create_secret(plane: &ControlPlane) -> Result<Secret> {
    let secrets: Api<Secret> = Api::default_namespaced(plane.client()?);
    let secret = from_value(json!({"metadata": {"generateName": "any-"}}))?;
    Ok(secrets.create(&PostParams::default(), &secret).await?)
}

#[tokio::test]
async fn a_plane_is_used_again_after_its_runtime_and_has_nothing_of_the_test_before() -> Result<()> {
    let used = thread::spawn(|| tokio::runtime::Runtime::new()?.block_on(leave_everything()));
    let process = used.join().ok().context("the thread panicked")??;

    let plane = options(1).pooled().await?;
    ensure!(plane.apiserver().pid()? == process, "the plane was not used again");
    let client = plane.client()?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    ensure!(namespaces.get_opt("left").await?.is_none(), "the namespace is left");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    ensure!(
        definitions.list(&ListParams::default()).await?.items.is_empty(),
        "a CRD is left"
    );
    let listed = Request::get("/apis/example.com/v1/leftovers").body(Vec::new())?;
    let listed = client.request_text(listed).await;
    ensure!(
        matches!(&listed, Err(kube::Error::Api(status)) if status.code == 404),
        "custom resources are still served: {listed:?}"
    );
    ensure!(
        plane.stored("example.com/leftovers").await?.is_empty(),
        "a custom resource is left"
    );
    let roles: Api<ClusterRole> = Api::all(client);
    let restored = roles.get("view").await?.aggregation_rule;
    ensure!(restored.is_some(), "the role was not restored");
    ensure!(!plane.folder().join("left.log").exists(), "a file is left");
    create_secret(&plane).await?;
    Ok(())
}

#[tokio::test]
async fn definitions_are_kept_without_objects_unless_they_were_changed() -> Result<()> {
    let options = options(2).definitions([definition()].into());
    let plane = options.clone().pooled().await?;
    let process = plane.apiserver().pid()?;
    leave_namespace(&plane.client()?).await?;
    give_back(plane)?;

    let plane = options.clone().pooled().await?;
    ensure!(plane.apiserver().pid()? == process, "the plane was not used again");
    let listed = Request::get("/apis/example.com/v1/leftovers").body(Vec::new())?;
    let listed: Value = plane.client()?.request(listed).await?;
    ensure!(listed["items"] == json!([]), "{listed}");

    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    let name = "leftovers.example.com";
    definitions.delete(name, &DeleteParams::default()).await?;
    eventually(LIMIT, "the definition to be gone", || async {
        ensure!(definitions.get_opt(name).await?.is_none(), "it is there");
        anyhow::Ok(())
    })
    .await?;
    give_back(plane)?;

    let plane = options.pooled().await?;
    ensure!(plane.apiserver().pid()? != process, "the plane was used again");
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    definitions.get(name).await?;
    Ok(())
}
