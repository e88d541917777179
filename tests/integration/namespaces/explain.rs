//! How the controller says why a namespace is not gone.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use portreeve_testing::eventually;

use super::environment::{NO_GRACE, NamespaceEnvironment};
use crate::fixtures::{LIMIT, object_builder::config_map};

#[tokio::test]
async fn a_stuck_namespace_is_reported_with_what_holds_it() -> Result<()> {
    let environment = NamespaceEnvironment::start(&[NO_GRACE, "--namespace-stuck-after=1s"]).await?;
    let held = environment
        .tenant
        .create(config_map("held").finalizer("example.com/hold"))
        .await?;
    environment.delete().await?;
    let words = "configmaps held (created ";
    environment
        .wait_for_condition("NamespaceContentRemaining", "True", words)
        .await?;
    environment.wait_for_explanation(words).await?;
    environment.wait_for_explanation("finalizers example.com/hold").await?;
    let stuck = environment
        .daemon
        .wait_for_metric("namespace_controller_stuck_namespaces", &[], 1.0);
    stuck.await?;
    let metrics = environment.daemon.admin.metrics().await?;
    ensure!(metrics.sum("namespace_controller_oldest_terminating_seconds", &[]) >= 1.0);
    ensure!(metrics.sum("namespace_controller_terminating_namespaces", &[]) >= 1.0);
    let line = format!(
        "1 namespaces have been terminating for more than 1s, {}",
        environment.name()
    );
    eventually(LIMIT, "a note in /readyz", || async {
        let (status, body) = environment.daemon.admin.get("/readyz?verbose").await?;
        ensure!(status == 200 && body.contains(&line), "{status}: {body}");
        anyhow::Ok(())
    })
    .await?;
    let event = event(&environment).await?;
    let note = event.note.unwrap_or_default();
    ensure!(note.contains(words) && note.contains("example.com/hold"), "{note}");
    ensure!(event.type_.as_deref() == Some("Warning"));
    environment.release(&held).await?;
    environment
        .daemon
        .wait_for_metric("namespace_controller_stuck_namespaces", &[], 0.0)
        .await?;
    environment.finish().await
}

/// Returns the event about the namespace. It is in another one, because a terminating namespace
/// accepts none.
async fn event(environment: &NamespaceEnvironment) -> Result<Event> {
    let events: Api<Event> = Api::namespaced(environment.client().clone(), "default");
    let selected = ListParams::default().fields(&format!("regarding.name={}", environment.name()));
    eventually(LIMIT, "an event about the namespace", || async {
        let mut found = events.list(&selected).await?.items;
        let event = found.pop().context("there is none")?;
        ensure!(found.is_empty(), "there are more");
        ensure!(event.reason.as_deref() == Some("NamespaceDeletionStuck"));
        anyhow::Ok(event)
    })
    .await
}

#[tokio::test]
async fn the_page_names_what_it_needs() -> Result<()> {
    let environment = NamespaceEnvironment::shared().await?;
    let page = "/debug/controllers/namespace-controller/explain";
    let (status, body) = environment.daemon.admin.get(page).await?;
    ensure!(status == 400 && body.contains("?name=NAMESPACE"), "{status}: {body}");
    let page = page.replace("-controller", "");
    let (status, body) = environment.daemon.admin.get(&format!("{page}?name=default")).await?;
    ensure!(
        status == 404 && body.contains("is not being deleted"),
        "{status}: {body}"
    );
    environment.finish().await
}
