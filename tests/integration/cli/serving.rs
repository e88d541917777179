//! The HTTPS endpoints of a daemon that has nothing to do.

use anyhow::{Result, ensure};
use http::StatusCode;
use portreeve_testing::{ControlPlane, Signal};

use crate::fixtures::{LIMIT, daemon::Daemon};

#[tokio::test]
async fn a_daemon_without_controllers_is_healthy_and_idle() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let flags = ["--controllers=-foo", "--webhook-shutdown-delay=5s"];
    let daemon = Daemon::start(plane, "idle-daemon", &flags).await?;
    daemon.admin.wait_until_ready().await?;
    for path in ["/livez", "/readyz", "/healthz"] {
        let (status, text) = daemon.admin.get(path).await?;
        ensure!(status == StatusCode::OK && text == "ok", "{path}: {status} {text}");
    }
    let metrics = daemon.admin.metrics().await?;
    ensure!(metrics.sum("rest_client_requests_total", &[]) > 0.0, "{}", metrics.0);
    for name in [
        "running_managed_controllers",
        "workqueue_adds_total",
        "controller_runtime_reconcile_total",
    ] {
        ensure!(metrics.sum(name, &[]) == 0.0, "{name} is not 0");
    }
    ensure!(!metrics.0.contains("foos"), "the metrics mention Foos");
    ensure!(!daemon.log()?.contains("foo-controller"), "{}", daemon.log()?);
    let ignored = "ignoring --webhook-shutdown-delay, because --webhook-port is 0";
    ensure!(daemon.log()?.contains(ignored), "{}", daemon.log()?);
    daemon.process.signal(Signal::TERM)?;
    let status = daemon.process.wait(LIMIT).await?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}
