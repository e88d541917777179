//! Outages of the apiserver: the daemon waits for it and loses no work.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use http::StatusCode;
use portreeve_api::conditions::ConditionStatus;
use portreeve_testing::ControlPlane;

use crate::fixtures::{daemon::Daemon, namespace::NamespaceFixture};

#[tokio::test]
async fn the_daemon_waits_for_an_apiserver_that_is_down_at_startup() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let fixture = NamespaceFixture::new(&plane, "away").await?;
    plane.apiserver().stop().await?;
    let daemon = Daemon::start(&plane, "patient-daemon", &["--install-crds"]).await?;
    daemon.wait_for_line(&["waiting for the apiserver"]).await?;
    let (status, text) = daemon.admin.get("/readyz?verbose").await?;
    ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{status}: {text}");
    ensure!(text.contains("waiting for the apiserver"), "{text}");
    let (status, text) = daemon.admin.get("/livez").await?;
    ensure!(
        status == StatusCode::OK,
        "livez fails, but a restart would not help: {text}"
    );
    plane.apiserver().start().await?;
    daemon.admin.wait_until_ready().await?;
    fixture.ready_foo("web", 2).await?;
    Ok(())
}

#[tokio::test]
async fn no_work_is_lost_when_the_apiserver_is_killed() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let daemon = Daemon::start(&plane, "enduring-daemon", &["--install-crds"]).await?;
    daemon.admin.wait_until_ready().await?;
    let fixture = NamespaceFixture::new(&plane, "outage").await?;
    let names: Vec<String> = (0..40).map(|number| format!("web-{number}")).collect();
    try_join_all(names.iter().map(|name| fixture.create_foo(name, name, 1))).await?;
    plane.apiserver().kill().await?;
    plane.apiserver().start().await?;
    for name in &names {
        fixture.wait_for_condition(name, "Ready", ConditionStatus::True).await?;
    }
    let deployments = fixture.deployments().list(&kube::api::ListParams::default()).await?;
    ensure!(
        deployments.items.len() == names.len(),
        "{} Deployments",
        deployments.items.len()
    );
    ensure!(daemon.process.exit_status().is_none(), "{}", daemon.process.log_tail());
    // The informers have to reconnect the watches that were cut off.
    daemon.admin.wait_until_ready().await?;
    fixture.ready_foo("later", 1).await?;
    Ok(())
}
