//! A leader whose clock differs from the apiserver's by more than certificates can bear.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::{Patch, PatchParams};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Repeat};
use serde_json::json;

use super::{FLAGS, Objects};
use crate::fixtures::daemon::Daemon;

/// By how much the apiserver's clock seems to be ahead.
const AHEAD: Duration = Duration::from_hours(365 * 24);

#[tokio::test]
async fn a_leader_issues_nothing_until_its_clock_is_right() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let objects = Objects::new(&plane.client()?);
    objects.create_namespace().await?;
    objects.create_secret().await?;
    objects.create_config_map().await?;
    let proxy = FaultProxy::start(&plane).await?;
    proxy.fault(Matcher::any(), Fault::LaterDate(AHEAD), Repeat::UntilHealed);
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "clock")?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "clock-daemon", &FLAGS).await?;
    let failed = |_, text: &str| text.contains("[-]clock failed: No certificate is issued");
    daemon
        .admin
        .wait_until_readyz("the clock's check to fail", failed)
        .await?;
    let note = objects.wait_for_event("the clock of this replica").await?;
    ensure!(note.contains("s behind the apiserver's: set the clock"), "{note}");
    let offset = daemon.admin.metrics().await?;
    let offset = offset.sum("portreeve_apiserver_clock_offset_seconds", &[]);
    ensure!((offset - AHEAD.as_secs_f64()).abs() < 60.0, "{offset} s");
    let data = objects.data().await?;
    ensure!(data.is_empty(), "{:?}", data.keys());

    // The next responses are those to new watches.
    proxy.heal();
    proxy.reset();
    let passed = |_, text: &str| text.contains("[+]clock ok");
    daemon
        .admin
        .wait_until_readyz("the clock's check to pass", passed)
        .await?;
    // Nothing is issued before the next comparison, once a minute or after a change.
    let changed = Patch::Merge(json!({"metadata": {"labels": {"changed": "yes"}}}));
    let parameters = PatchParams::default();
    objects
        .secrets
        .patch("portreeve-serving", &parameters, &changed)
        .await?;
    objects.wait_until_trusted(daemon.admin).await?;
    daemon.admin.wait_until_ready().await
}
