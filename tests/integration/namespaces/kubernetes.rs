//! Tests of Kubernetes, by their names: `test/integration/namespace` and the specs of namespaces
//! in `test/e2e/apimachinery` that need no running Pods.

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use portreeve_testing::eventually;
use serde_json::{Value, json};

use super::{environment::NamespaceEnvironment, profile::wait_until_gone};
use crate::fixtures::{
    LIMIT,
    object_builder::{ObjectBuilder, config_map, pod},
};

/// `TestNamespaceCondition`: an unscheduled Pod, and a Deployment with a finalizer.
#[tokio::test]
async fn test_namespace_condition() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    environment.tenant.create(pod("pod")).await?;
    let labels = json!({"name": "deployment"});
    let deployment = ObjectBuilder::new("apps/v1", "Deployment", "deployment").with(
        "spec",
        json!({
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        }),
    );
    let deployment = environment
        .tenant
        .create(deployment.finalizer("custom.io/finalizer"))
        .await?;
    environment.delete().await?;
    let expected = [
        (
            "NamespaceContentRemaining",
            "True",
            "Some resources are remaining: deployments.apps has 1 resource instances",
        ),
        (
            "NamespaceFinalizersRemaining",
            "True",
            "Some content in the namespace has finalizers remaining: custom.io/finalizer in 1 resource instances",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "False",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionDiscoveryFailure",
            "False",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionContentFailure",
            "False",
            "All content successfully deleted, may be waiting on finalization",
        ),
    ];
    for (type_, status, message) in expected {
        eventually(LIMIT, &format!("condition {type_}"), || async {
            let found = environment.message(type_, status).await?;
            ensure!(found == message, "{type_} is {found:?}");
            anyhow::Ok(())
        })
        .await?;
    }
    environment.release(&deployment).await?;
    environment.finish().await
}

/// `TestNamespaceLabels`: the apiserver labels a namespace with its name, and deletion goes on
/// with the label.
#[tokio::test]
async fn test_namespace_labels() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let label = &environment.namespace().await?["metadata"]["labels"]["kubernetes.io/metadata.name"];
    ensure!(label == environment.name(), "{label}");
    environment.delete().await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// Deletes the namespace, creates it again, and checks that it has no objects of this kind.
async fn recreate(environment: &NamespaceEnvironment, kind: &str) -> Result<()> {
    environment.delete().await?;
    environment.wait_until_gone().await?;
    let namespaces: Api<Namespace> = Api::all(environment.client().clone());
    let again = serde_json::from_value(json!({"metadata": {"name": environment.name()}}))?;
    namespaces.create(&PostParams::default(), &again).await?;
    let left = environment.tenant.list("v1", kind).await?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// `should ensure that all services are removed when a namespace is deleted`.
#[tokio::test]
async fn should_ensure_that_all_services_are_removed_when_a_namespace_is_deleted() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let spec = json!({"ports": [{"port": 80}]});
    let service = ObjectBuilder::new("v1", "Service", "test-service").with("spec", spec);
    environment.tenant.create(service).await?;
    recreate(&environment, "Service").await?;
    environment.finish().await
}

/// `should ensure that all pods are removed when a namespace is deleted`, with a Pod that no node
/// runs.
#[tokio::test]
async fn should_ensure_that_all_pods_are_removed_when_a_namespace_is_deleted() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    environment.tenant.create(pod("test-pod")).await?;
    recreate(&environment, "Pod").await?;
    environment.finish().await
}

/// `should delete fast enough (90 percent of 100 namespaces in 150 seconds)` and `should always
/// delete fast (ALL of 100 namespaces in 150 seconds)`, with fewer namespaces. The bench measures
/// how fast.
#[tokio::test]
async fn should_delete_fast_enough() -> Result<()> {
    const COUNT: usize = 30;
    let environment = NamespaceEnvironment::shared().await?;
    let namespaces: Api<Namespace> = Api::all(environment.client().clone());
    let prefix = environment.name();
    let names: Vec<_> = (0..COUNT).map(|number| format!("{prefix}-{number}")).collect();
    let create_and_delete = async |name: String| {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        namespaces.delete(&name, &DeleteParams::default()).await?;
        anyhow::Ok(())
    };
    let all = stream::iter(names.clone()).map(create_and_delete);
    all.buffer_unordered(10).try_collect::<Vec<_>>().await?;
    for name in &names {
        wait_until_gone(environment.client(), name).await?;
    }
    environment.finish().await
}

/// Replaces the namespace or a subresource of it.
async fn replace(environment: &NamespaceEnvironment, subresource: &str, change: impl Fn(&mut Value)) -> Result<()> {
    let mut namespace = environment.namespace().await?;
    change(&mut namespace);
    let path = format!("/api/v1/namespaces/{}{subresource}", environment.name());
    let request = http::Request::put(path).header("content-type", "application/json");
    let request = request.body(namespace.to_string().into_bytes())?;
    let _: Value = environment.client().request(request).await?;
    Ok(())
}

/// `should patch a Namespace` and `should apply an update to a Namespace`: its labels.
#[tokio::test]
async fn should_patch_and_apply_an_update_to_a_namespace() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    environment
        .merge(json!({"metadata": {"labels": {"patched": "yes"}}}))
        .await?;
    replace(&environment, "", |namespace| {
        namespace["metadata"]["labels"]["updated"] = json!("yes");
    })
    .await?;
    environment.delete().await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// `should apply changes to a namespace status`: conditions of others, which stay while the
/// namespace terminates.
#[tokio::test]
async fn should_apply_changes_to_a_namespace_status() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let held = environment
        .tenant
        .create(config_map("held").finalizer("example.com/hold"))
        .await?;
    replace(&environment, "/status", |namespace| {
        namespace["status"]["conditions"] =
            json!([{"type": "StatusUpdate", "status": "True", "reason": "E2E", "message": "updated"}]);
    })
    .await?;
    environment.delete().await?;
    environment
        .wait_for_condition(
            "NamespaceContentRemaining",
            "True",
            "configmaps. has 1 resource instances",
        )
        .await?;
    ensure!(environment.message("StatusUpdate", "True").await? == "updated");
    environment.release(&held).await?;
    environment.finish().await
}

/// `should apply a finalizer to a Namespace`: an added finalizer keeps it.
#[tokio::test]
async fn should_apply_a_finalizer_to_a_namespace() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let finalize = async |finalizers: &[&str]| {
        let finalizers = json!(finalizers);
        replace(&environment, "/finalize", |namespace| {
            namespace["spec"]["finalizers"] = finalizers.clone();
        })
        .await
    };
    finalize(&["kubernetes", "e2e.example.com/fakeFinalizer"]).await?;
    environment.delete().await?;
    environment.wait_for_explanation("It waits for others").await?;
    let spec = &environment.namespace().await?["spec"];
    ensure!(spec["finalizers"] == json!(["e2e.example.com/fakeFinalizer"]), "{spec}");
    finalize(&[]).await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}
