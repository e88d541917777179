//! What cannot be asked: a namespace is not finalized while an object in it may be hidden.

use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{Authority, CannedResponse, Fault, Matcher, Repeat};
use serde_json::json;

use super::{
    environment::{CONTROLLERS, NO_GRACE, NamespaceEnvironment},
    profile::{delete_tenant, wait_until_gone},
};
use crate::fixtures::{
    LIMIT,
    aggregated_api::AggregatedApi,
    dynamic_client::{DynamicClient, Policy},
    in_process::InProcess,
    object_builder::{ObjectBuilder, config_map},
    test_crd::{TestCrd, discovery},
};

/// How long an attempt takes in which discovery changes.
const MEANWHILE: Duration = Duration::from_secs(5);

/// Nobody knows what an API serves that has never answered.
#[tokio::test]
async fn an_api_that_never_answered_keeps_the_namespace_and_nothing_else() -> Result<()> {
    // It keeps every namespace, so this test needs a control plane of its own.
    let environment = NamespaceEnvironment::start(&[NO_GRACE]).await?;
    environment.tenant.create(config_map("gone")).await?;
    let service = ObjectBuilder::new("apiregistration.k8s.io/v1", "APIService", "v1.dead.example.com").with(
        "spec",
        json!({
            "group": "dead.example.com",
            "version": "v1",
            "service": {"namespace": "default", "name": "nobody"},
            "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 1000,
            "versionPriority": 15,
        }),
    );
    let service = environment.tenant.create_for_cluster(service).await?;
    environment.delete().await?;
    environment
        .wait_for_condition("NamespaceDeletionDiscoveryFailure", "True", "dead.example.com/v1")
        .await?;
    environment
        .wait_for_condition("NamespaceContentRemaining", "False", "All content successfully removed")
        .await?;
    environment
        .wait_for_explanation("dead.example.com/v1: it cannot be discovered")
        .await?;
    environment.tenant.delete(&service, Policy::Background).await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// kubernetes/kubernetes#83332: an API that has nothing namespaced can hide nothing.
#[tokio::test]
async fn an_api_that_had_nothing_namespaced_keeps_no_namespace() -> Result<()> {
    let api = AggregatedApi::start("aggregated").await?;
    api.register().await?;
    let flags = [CONTROLLERS, NO_GRACE];
    let daemon = InProcess::start(&api.main, portreeve_cli::CONTROLLERS, &flags).await?;
    let delete_namespace = async |prefix| {
        let tenant = DynamicClient::new(&api.main, prefix).await?;
        tenant.create(config_map("gone")).await?;
        delete_tenant(tenant.client(), tenant.name()).await?;
        wait_until_gone(tenant.client(), tenant.name()).await
    };
    delete_namespace("while-it-answers").await?;
    api.other.apiserver().stop().await?;
    api.wait_until_stale().await?;
    delete_namespace("while-it-is-dead").await?;
    daemon.finish().await
}

#[tokio::test]
async fn a_broken_conversion_webhook_keeps_the_namespace_and_is_named() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let crd = TestCrd::namespaced(&environment.tenant).await?;
    environment.tenant.create(crd.instance("hidden")).await?;
    environment.tenant.create(config_map("gone")).await?;
    crd.break_conversion(Authority::new()?.pem().as_bytes()).await?;
    environment.delete().await?;
    environment
        .wait_for_condition("NamespaceDeletionContentFailure", "True", &crd.name())
        .await?;
    environment
        .wait_for_condition("NamespaceContentRemaining", "False", "All content successfully removed")
        .await?;
    let spec = &environment.namespace().await?["spec"];
    ensure!(spec["finalizers"] == json!(["kubernetes"]), "{spec}");
    crd.repair_conversion().await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// The objects of a definition that is being deleted are still served.
#[tokio::test]
async fn a_definition_that_goes_at_the_same_time_does_no_harm() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let crd = TestCrd::namespaced(&environment.tenant).await?;
    environment.tenant.create(crd.instance("one")).await?;
    let (deleted, dropped) = tokio::join!(environment.delete(), crd.delete());
    deleted.and(dropped)?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// Discovery shows a new definition later than it is served.
#[tokio::test]
async fn objects_of_a_new_definition_are_deleted() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let crd = TestCrd::namespaced(&environment.tenant).await?;
    let object = environment
        .tenant
        .create(crd.instance("new").finalizer("example.com/hold"))
        .await?;
    environment.delete().await?;
    environment
        .wait_for_condition("NamespaceContentRemaining", "True", &crd.name())
        .await?;
    environment.release(&object).await?;
    ensure!(environment.tenant.find(&object).await?.is_none());
    environment.finish().await
}

/// One apiserver of several shows a definition later than another. It does so after discovery was
/// read for the attempt, and before the attempt ends.
#[tokio::test]
async fn objects_of_a_definition_that_is_discovered_meanwhile_are_deleted() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE]).await?;
    let client = environment.client();
    let late = CannedResponse::document(discovery(client).await?);
    let discovered = environment
        .proxy
        .respond(Matcher::any().path("/apis"), late, Repeat::UntilHealed);
    let lists = Matcher::lists().resource("configmaps").namespace(environment.name());
    let listed = environment
        .proxy
        .fault(lists, Fault::DelayRequest(MEANWHILE), Repeat::Next(1));
    let crd = TestCrd::namespaced(&environment.tenant).await?;
    environment.tenant.create(crd.instance("new")).await?;
    environment.delete().await?;
    listed.wait_for_applied(1, LIMIT).await?;
    crd.wait_until_discovered().await?;
    environment.proxy.heal_one(&discovered);
    // The end of another namespace shows that the daemon has read discovery again.
    let other = DynamicClient::new(&environment.plane, "other").await?;
    delete_tenant(client, other.name()).await?;
    wait_until_gone(client, other.name()).await?;
    environment.wait_until_gone().await?;
    let stored = environment.plane.stored_in(environment.name()).await?;
    ensure!(stored.is_empty(), "{stored:?}");
    environment.finish().await
}
