//! Standbys serve webhooks, and a replica that ends is unready before it stops.

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_crontab::api::CRONTABS;
use portreeve_testing::{Signal, eventually};
use serde_json::json;

use super::environment::Environment;
use crate::fixtures::{
    LIMIT,
    daemon::LONG_LEASE,
    definitions::plane_with_definitions,
    webhooks::{WebhookDaemon, configurations, create, crontab, install},
};

#[tokio::test]
async fn a_replica_serves_on_after_sigterm_until_the_delay_has_passed() -> Result<()> {
    let plane = plane_with_definitions().await?;
    let delay = "--webhook-shutdown-delay=3s";
    let flags = [&LONG_LEASE[..], &[delay, "--leader-elect"]].concat();
    let Environment { plane, daemon: leader } = Environment::start(plane, &flags).await?;
    let client = plane.client()?;
    leader.daemon.wait_for_line(&["acquired the lease"]).await?;

    leader.daemon.process.signal(Signal::TERM)?;
    let webhooks = leader.webhooks;
    eventually(LIMIT, "the replica to be unready", || async {
        let (status, text) = webhooks.get("/readyz").await?;
        ensure!(
            (status, &*text) == (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n"),
            "{status}: {text}"
        );
        anyhow::Ok(())
    })
    .await?;
    let bad = crontab("bad", json!({"schedule": "61 * * * *"}));
    let denied = create(&client, &CRONTABS, "default", "?dryRun=All", &bad).await?;
    ensure!(
        denied.message().contains("spec.schedule"),
        "it still serves: {denied:?}"
    );
    let status = leader.daemon.process.wait(LIMIT).await?;
    ensure!(status.success(), "{status}");
    Ok(())
}

#[tokio::test]
async fn a_standby_serves_webhooks() -> Result<()> {
    let flags = [&LONG_LEASE[..], &["--leader-elect"]].concat();
    let Environment { plane, daemon: leader } = Environment::start(plane_with_definitions().await?, &flags).await?;
    leader.daemon.wait_for_line(&["acquired the lease"]).await?;
    let flags = [&flags[..], &[crate::fixtures::webhooks::CONTROLLERS]].concat();
    let standby = WebhookDaemon::start(&plane, "standby", &flags).await?;
    let client = plane.client()?;
    install(
        &client,
        &configurations(standby.webhooks.port, Some(&plane.authority().pem()))?,
    )
    .await?;
    let metrics = standby.daemon.admin.metrics().await?;
    ensure!(
        metrics.sum("leader_election_master_status", &[]).abs() < 0.5,
        "it leads"
    );
    ensure!(metrics.sum("controller_runtime_webhook_requests_total", &["code=\"200\""]) >= 2.0);
    Ok(())
}
