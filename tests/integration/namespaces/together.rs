//! Namespaces that are deleted at the same time.

use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{CannedResponse, Fault, Matcher, Repeat};
use serde_json::json;

use super::{
    environment::{NO_GRACE, NamespaceEnvironment},
    profile::{delete_tenant, wait_until_gone},
};
use crate::fixtures::{
    LIMIT,
    dynamic_client::DynamicClient,
    object_builder::{ObjectBuilder, config_map},
};

/// A resource that only the last namespace of the test has an object of.
const TEMPLATES: &str = "/api/v1/podtemplates";
/// A resource that cannot be listed in all namespaces.
const LIMITS: &str = "/api/v1/limitranges";

/// Deletes a namespace, and checks that nothing of it is left in etcd.
async fn delete(environment: &NamespaceEnvironment, tenant: &DynamicClient) -> Result<()> {
    delete_tenant(tenant.client(), tenant.name()).await?;
    ensure_nothing_is_left(environment, tenant).await
}

async fn ensure_nothing_is_left(environment: &NamespaceEnvironment, tenant: &DynamicClient) -> Result<()> {
    wait_until_gone(tenant.client(), tenant.name()).await?;
    let left = environment.plane.stored_in(tenant.name()).await?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[tokio::test]
async fn what_no_namespace_has_is_listed_once_for_all() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE]).await?;
    let held = config_map("held").finalizer("example.com/hold");
    let held = environment.tenant.create(held).await?;
    let proxy = &environment.proxy;
    let broken = CannedResponse::internal_error();
    let broken = proxy.respond(Matcher::lists().path(LIMITS), broken, Repeat::UntilHealed);
    let of_all = proxy.count(Matcher::lists().path(TEMPLATES));
    environment.delete().await?;
    environment.wait_for_explanation("configmaps held").await?;
    ensure!(of_all.matched() == 0, "a single namespace is listed by itself");

    let tenants = async || DynamicClient::new(&environment.plane, "other").await;
    let lists = |tenant: &DynamicClient, resource| {
        let lists = Matcher::lists().namespace(tenant.name());
        proxy.count(lists.resource(resource))
    };
    let other = tenants().await?;
    let (templates, limits) = (lists(&other, "podtemplates"), lists(&other, "limitranges"));
    other.create(config_map("gone")).await?;
    delete(&environment, &other).await?;
    let before = of_all.matched();
    ensure!(before > 0 && templates.matched() == 0);
    ensure!(broken.applied() > 0 && limits.matched() > 0);

    // What was not used before is found once it is.
    let last = tenants().await?;
    let template = json!({"spec": {"containers": [{"name": "one", "image": "one"}]}});
    let template = ObjectBuilder::new("v1", "PodTemplate", "one").with("template", template);
    let limit = json!({"limits": [{"type": "Pod", "max": {"cpu": "1"}}]});
    let limit = ObjectBuilder::new("v1", "LimitRange", "one").with("spec", limit);
    for object in [template, limit] {
        last.create(object).await?;
    }
    delete(&environment, &last).await?;
    ensure!(of_all.matched() > before);
    environment.release(&held).await?;
    environment.finish().await
}

/// A creation may pass the apiserver's check before the deletion of the namespace, and end while
/// other objects are being deleted.
#[tokio::test]
async fn what_is_created_during_long_deletions_is_deleted() -> Result<()> {
    // After deletions that took more than two seconds, everything is listed again.
    const LONG: Duration = Duration::from_secs(3);
    let environment = NamespaceEnvironment::start(&[NO_GRACE]).await?;
    let held = config_map("held").finalizer("example.com/hold");
    let held = environment.tenant.create(held).await?;
    environment.delete().await?;
    environment.wait_for_explanation("configmaps held").await?;

    let other = DynamicClient::new(&environment.plane, "other").await?;
    other.create(config_map("slow")).await?;
    let deletions = Matcher::any().method("DELETE").namespace(other.name());
    let slow = environment
        .proxy
        .fault(deletions, Fault::DelayRequest(LONG), Repeat::Next(1));
    delete_tenant(other.client(), other.name()).await?;
    slow.wait_for_applied(1, LIMIT).await?;
    let metadata = json!({"name": "late", "namespace": other.name(), "uid": "late"});
    let late = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata});
    let path = format!("podtemplates/{}/late", other.name());
    environment.plane.store_unchecked(&path, &late).await?;
    ensure_nothing_is_left(&environment, &other).await?;
    environment.release(&held).await?;
    environment.finish().await
}
