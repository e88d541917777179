//! Access while the apiserver does not answer.

use anyhow::{Result, ensure};
use portreeve_testing::ControlPlane;

use super::{Credentials, NOTHING, account_token, ensure_status, rule};
use crate::fixtures::daemon::Daemon;

#[tokio::test]
async fn while_the_apiserver_is_away_cached_answers_count_and_nothing_else_is_open() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let system = plane.namespace("access").await?;
    let flags = [
        NOTHING,
        "--authentication-token-webhook-cache-ttl=1h",
        "--authorization-webhook-cache-authorized-ttl=1h",
        "--authorization-webhook-cache-unauthorized-ttl=1h",
    ];
    let daemon = Daemon::start_closed(&plane, plane.kubeconfig(), "away-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    let scraper = account_token(&plane, &system, "scraper", vec![rule(&["/metrics", "/configz"])]).await?;
    let other = account_token(&plane, &system, "other", vec![rule(&["/metrics"])]).await?;
    let masters = Credentials::Certificate(plane.authority().client_certificate("an-admin", "system:masters")?);
    ensure_status(&daemon.admin, "/metrics", &scraper, 200).await?;
    ensure_status(&daemon.admin, "/metrics", &Credentials::None, 403).await?;

    plane.apiserver().kill().await?;
    ensure_status(&daemon.admin, "/metrics", &scraper, 200).await?;
    ensure_status(&daemon.admin, "/metrics", &Credentials::None, 403).await?;
    // The CAs are known, and system:masters needs no review.
    ensure_status(&daemon.admin, "/configz", &masters, 200).await?;
    let text = ensure_status(&daemon.admin, "/configz", &scraper, 500).await?;
    ensure!(
        text.starts_with("Internal Server Error: \"/configz\": failed to review the request"),
        "{text}"
    );
    ensure_status(&daemon.admin, "/metrics", &other, 401).await?;
    ensure_status(&daemon.admin, "/livez", &Credentials::None, 200).await?;

    plane.apiserver().start().await?;
    ensure_status(&daemon.admin, "/configz", &scraper, 200).await?;
    ensure_status(&daemon.admin, "/metrics", &other, 200).await?;
    Ok(())
}
