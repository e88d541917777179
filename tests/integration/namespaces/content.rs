//! What is deleted, in which order, and when a namespace is finalized.

use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{CannedResponse, Fault, Matcher, Repeat};
use serde_json::json;

use super::environment::{NO_GRACE, NamespaceEnvironment};
use crate::fixtures::{
    LIMIT,
    dynamic_client::{Policy, ensure_throughout},
    object_builder::{ObjectBuilder, config_map, pod, secret},
    test_crd::TestCrd,
};

/// How long a state must last that must not change.
const THROUGHOUT: Duration = Duration::from_secs(2);
const HOLD: &str = "example.com/hold";

/// Returns what etcd has in the namespace, as `<resource>/<name>`.
async fn objects(environment: &NamespaceEnvironment) -> Result<Vec<String>> {
    environment.plane.stored_in(environment.name()).await
}

#[tokio::test]
async fn a_deleted_namespace_is_emptied_and_then_gone() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let crd = TestCrd::namespaced(&environment.tenant).await?;
    for number in 0..12 {
        environment.tenant.create(config_map(&format!("many-{number}"))).await?;
    }
    for object in [
        secret("one"),
        pod("one"),
        crd.instance("one"),
        ObjectBuilder::new("v1", "ServiceAccount", "one"),
        ObjectBuilder::new("rbac.authorization.k8s.io/v1", "Role", "one"),
    ] {
        environment.tenant.create(object).await?;
    }
    ensure!(objects(&environment).await?.len() >= 17);
    environment.delete().await?;
    environment.wait_until_gone().await?;
    let left = objects(&environment).await?;
    ensure!(left.is_empty(), "{left:?}");
    environment.finish().await
}

#[tokio::test]
async fn an_empty_namespace_costs_no_write_but_the_last() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE]).await?;
    let writes = environment
        .proxy
        .count(Matcher::writes().namespaces_with(environment.name()));
    environment.delete().await?;
    environment.wait_until_gone().await?;
    ensure!(writes.matched() == 1, "{} writes", writes.matched());
    environment.finish().await
}

#[tokio::test]
async fn nothing_is_deleted_before_the_grace_is_over() -> Result<()> {
    let environment = NamespaceEnvironment::start(&["--namespace-deletion-grace=1h"]).await?;
    environment.tenant.create(config_map("kept")).await?;
    let requests = environment
        .proxy
        .count(Matcher::any().namespaces_with(environment.name()));
    environment.delete().await?;
    environment
        .wait_for_explanation("Its content is not deleted yet.")
        .await?;
    ensure_throughout(THROUGHOUT, async || {
        ensure!(requests.matched() == 0, "{} requests", requests.matched());
        Ok(())
    })
    .await?;
    // The next leader has seen the deletion only now, so it waits as well.
    let environment = environment.restart(&["--namespace-deletion-grace=1h"]).await?;
    environment
        .wait_for_explanation("Its content is not deleted yet.")
        .await?;
    ensure!(requests.matched() == 0);
    environment.finish().await
}

/// Kubernetes' `OrderedNamespaceDeletion namespace deletion should delete pod first`.
#[tokio::test]
async fn pods_go_before_anything_else() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let held = environment.tenant.create(pod("held").finalizer(HOLD)).await?;
    environment.tenant.create(config_map("later")).await?;
    environment.delete().await?;
    environment
        .wait_for_condition("NamespaceContentRemaining", "True", "pods. has 1 resource instances")
        .await?;
    environment
        .wait_for_condition(
            "NamespaceFinalizersRemaining",
            "True",
            "example.com/hold in 1 resource instances",
        )
        .await?;
    let left = objects(&environment).await?;
    ensure!(left.contains(&"configmaps/later".to_owned()), "{left:?}");
    environment.release(&held).await?;
    environment.finish().await
}

/// A controller that removes finalizers needs its rights until it has done so.
#[tokio::test]
async fn accounts_roles_and_secrets_go_last() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let held = environment.tenant.create(config_map("held").finalizer(HOLD)).await?;
    for object in [
        secret("kept"),
        ObjectBuilder::new("v1", "ServiceAccount", "kept"),
        ObjectBuilder::new("rbac.authorization.k8s.io/v1", "Role", "kept"),
    ] {
        environment.tenant.create(object).await?;
    }
    environment.delete().await?;
    environment
        .wait_for_condition("NamespaceFinalizersRemaining", "True", HOLD)
        .await?;
    let left = objects(&environment).await?;
    ensure!(
        left == ["configmaps/held", "roles/kept", "secrets/kept", "serviceaccounts/kept"],
        "{left:?}"
    );
    environment.release(&held).await?;
    environment.finish().await
}

/// A watch shows that the last object is gone, so no interval is waited for.
#[tokio::test]
async fn the_last_object_ends_the_wait() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE]).await?;
    let held = environment.tenant.create(config_map("held").finalizer(HOLD)).await?;
    environment.delete().await?;
    environment.wait_for_explanation("configmaps held").await?;
    let namespace = environment.namespace().await?;
    ensure_throughout(THROUGHOUT, async || {
        let now = environment.namespace().await?;
        ensure!(now == namespace, "the namespace changed from {namespace} to {now}");
        Ok(())
    })
    .await?;
    let lists = environment
        .proxy
        .count(Matcher::lists().namespaces_with(environment.name()));
    environment
        .tenant
        .patch(&held, json!({"metadata": {"finalizers": null}}))
        .await?;
    lists.wait_for_matched(1, LIMIT).await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// No garbage collector runs here, so these deletions would never end.
#[tokio::test]
async fn deletions_that_wait_for_a_garbage_collector_end() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    for (name, policy) in [("foreground", Policy::Foreground), ("orphan", Policy::Orphan)] {
        let object = environment.tenant.create(config_map(name)).await?;
        environment.tenant.delete(&object, policy).await?;
    }
    ensure!(objects(&environment).await?.len() == 2);
    environment.delete().await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// Without conditions, a new leader would not know that deletions may have been sent.
#[tokio::test]
async fn nothing_is_deleted_while_the_conditions_cannot_be_written() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    environment.tenant.create(config_map("kept")).await?;
    let path = format!("/api/v1/namespaces/{}/status", environment.name());
    let status = Matcher::any().method("PUT").path_prefix(path);
    let refused = environment
        .proxy
        .respond(status, CannedResponse::internal_error(), Repeat::UntilHealed);
    environment.delete().await?;
    refused.wait_for_applied(2, LIMIT).await?;
    environment.wait_for_explanation("The last attempt, at ").await?;
    ensure!(objects(&environment).await? == ["configmaps/kept"]);
    environment.proxy.heal_one(&refused);
    environment.wait_until_gone().await?;
    environment.finish().await
}

/// The apiserver forgets the place in a long list after some minutes.
#[tokio::test]
async fn a_list_that_cannot_be_continued_is_read_again() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    for number in 0..3 {
        environment
            .tenant
            .create(config_map(&format!("object-{number}")))
            .await?;
    }
    let later = Matcher::later_pages().namespaces_with(environment.name());
    let expired = environment
        .proxy
        .respond(later, CannedResponse::expired(), Repeat::Next(2));
    let lists = Matcher::lists()
        .namespaces_with(environment.name())
        .resource("configmaps");
    let small = environment
        .proxy
        .fault(lists, Fault::LimitPageSize(1), Repeat::UntilHealed);
    environment.delete().await?;
    expired.wait_for_applied(2, LIMIT).await?;
    environment.wait_until_gone().await?;
    environment.proxy.heal_one(&small);
    let left = objects(&environment).await?;
    ensure!(left.is_empty(), "{left:?}");
    environment.finish().await
}

/// A finalizer of others on the namespace itself is theirs to remove.
#[tokio::test]
async fn finalizers_of_others_stay() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    environment.tenant.create(config_map("gone")).await?;
    environment.merge(json!({"metadata": {"finalizers": [HOLD]}})).await?;
    environment.delete().await?;
    environment.wait_for_explanation("It waits for others").await?;
    let namespace = environment.namespace().await?;
    ensure!(namespace["metadata"]["finalizers"] == json!([HOLD]), "{namespace}");
    ensure!(objects(&environment).await?.is_empty());
    environment.merge(json!({"metadata": {"finalizers": null}})).await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}

#[tokio::test]
async fn in_observe_mode_nothing_changes() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE, "--namespace-mode=observe"]).await?;
    environment.tenant.create(config_map("kept")).await?;
    let writes = environment
        .proxy
        .count(Matcher::writes().namespaces_with(environment.name()));
    environment.delete().await?;
    environment.wait_for_explanation("This replica only observes").await?;
    environment.wait_for_explanation("configmaps kept").await?;
    ensure!(writes.matched() == 0, "{} writes", writes.matched());
    let environment = environment.restart(&[NO_GRACE]).await?;
    environment.wait_until_gone().await?;
    environment.finish().await
}
