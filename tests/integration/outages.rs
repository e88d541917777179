//! A daemon that starts while the apiserver is down. `chaos` stops the apiserver under a running
//! daemon.

use anyhow::{Result, ensure};
use http::StatusCode;
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
