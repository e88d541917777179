//! A kube-controller-manager that holds its Lease deletes the namespaces.

use std::time::Instant;

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use super::environment::{LATE, NO_GRACE, NamespaceEnvironment, REQUEST_TIMEOUT};
use crate::fixtures::object_builder::config_map;

const NAME: &str = "kube-controller-manager";

/// Creates its Lease, which is not renewed.
async fn hold(environment: &NamespaceEnvironment, seconds: u32) -> Result<Api<Lease>> {
    let leases: Api<Lease> = Api::namespaced(environment.client().clone(), "kube-system");
    let spec = json!({"holderIdentity": "peer_1", "leaseDurationSeconds": seconds});
    let lease = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": spec}))?;
    leases.create(&PostParams::default(), &lease).await?;
    Ok(leases)
}

#[tokio::test]
async fn a_namespace_is_left_to_a_manager_until_its_lease_ends() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE, REQUEST_TIMEOUT]).await?;
    // So short that the end can be waited for, and long enough for a busy machine to see it.
    hold(&environment, 10).await?;
    let content = environment.tenant.create(config_map("content")).await?;
    environment.delete().await?;
    environment
        .wait_for_explanation("kube-controller-manager (peer_1) holds its Lease")
        .await?;
    environment.tenant.get(&content).await?;
    let left_alone = Instant::now();
    let namespace = environment.namespace().await?;
    ensure!(namespace["status"]["conditions"] == Value::Null, "{namespace}");
    environment.wait_until_gone().await?;
    // A deletion of the manager may have been on its way until then.
    ensure!(left_alone.elapsed() >= LATE, "{:?}", left_alone.elapsed());
    environment.finish().await
}

#[tokio::test]
async fn a_namespace_is_kept_for_a_manager_that_begins_meanwhile() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE, REQUEST_TIMEOUT]).await?;
    let held = environment
        .tenant
        .create(config_map("held").finalizer("example.com/hold"))
        .await?;
    environment.delete().await?;
    let finalizers = "NamespaceFinalizersRemaining";
    environment
        .wait_for_condition(finalizers, "True", "example.com/hold")
        .await?;
    let leases = hold(&environment, 3600).await?;
    let patch = json!({"metadata": {"finalizers": null}});
    environment.tenant.patch(&held, patch).await?;
    environment
        .wait_for_explanation("kube-controller-manager (peer_1) holds its Lease")
        .await?;
    let mut released = leases.get(NAME).await?;
    released.spec.get_or_insert_default().holder_identity = Some(String::new());
    leases.replace(NAME, &PostParams::default(), &released).await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

#[tokio::test]
async fn always_works_beside_a_manager() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE, "--namespace-mode=always"]).await?;
    hold(&environment, 3600).await?;
    environment.tenant.create(config_map("content")).await?;
    environment.delete().await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}
