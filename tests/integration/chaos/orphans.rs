//! Many owners in one namespace whose dependents are orphaned slowly, all at the same time.

use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Repeat};

use super::health_monitor::HealthMonitor;
use crate::fixtures::{
    daemon::Daemon,
    dynamic_client::{DynamicClient, Policy},
    expected_objects::ExpectedObjects,
    object_builder::{config_map, secret},
};

/// The number of workers, of owners, and of dependents of each owner. The owners are orphaned one
/// after another, so the last worker waits for all others.
const WORKERS: usize = 10;
/// The delay of each patch that removes an owner reference.
const DELAY: Duration = Duration::from_secs(2);
/// The stuck timeout is shorter than the wait of the last worker.
const FLAGS: &[&str] = &[
    "--controllers=garbagecollector",
    "--concurrent-gc-syncs=10",
    "--controller-stuck-timeout=12s",
];

#[tokio::test]
async fn a_worker_waiting_for_other_orphanings_is_not_reported_as_stuck() -> Result<()> {
    let plane = ControlPlane::pooled().await?;
    let proxy = FaultProxy::start(&plane).await?;
    let dynamic_client = DynamicClient::new(&plane, "orphans").await?;
    let mut expected_objects = ExpectedObjects::default();
    for number in 0..WORKERS {
        let owner = expected_objects
            .create_one(&dynamic_client, config_map(&format!("owner-{number}")))
            .await?;
        let child = |child| secret(&format!("child-{number}-{child}")).owned_by(&owner);
        expected_objects
            .create(&dynamic_client, (0..WORKERS).map(child))
            .await?;
        expected_objects.delete(&dynamic_client, &owner, Policy::Orphan).await?;
    }
    let releases = Matcher::any().method("PATCH").resource("secrets");
    let slow = proxy.fault(releases, Fault::DelayRequest(DELAY), Repeat::UntilHealed);
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "patient")?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "patient", FLAGS).await?;
    let health_monitor = HealthMonitor::of(daemon.admin);
    expected_objects.verify(&dynamic_client).await?;
    ensure!(
        slow.applied() >= (WORKERS * WORKERS) as u64,
        "the proxy did not delay every patch"
    );
    health_monitor.end()
}
