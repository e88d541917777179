//! Many owners whose dependents are orphaned slowly, all at once.

use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Repeat};

use super::record::HealthMonitor;
use crate::{
    garbage::{
        dynamic_client::{DynamicClient, Policy},
        expectations::ExpectedObjects,
        object_builder::{config_map, secret},
    },
    support::daemon::Daemon,
};

/// Each worker has an owner with as many dependents. They take turns, so the last one begins when all the others are done.
const WORKERS: usize = 10;
/// How late each dependent is let go.
const LATE: Duration = Duration::from_secs(2);
/// Sooner than the last one begins.
const FLAGS: &[&str] = &[
    "--controllers=garbagecollector",
    "--concurrent-gc-syncs=10",
    "--controller-stuck-timeout=12s",
];

#[tokio::test]
async fn nobody_is_stuck_who_waits_for_others_that_orphan() -> Result<()> {
    let plane = ControlPlane::start().await?;
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
    let slow = proxy.fault(releases, Fault::DelayRequest(LATE), Repeat::UntilHealed);
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "patient")?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "patient", FLAGS).await?;
    let health_monitor = HealthMonitor::of(daemon.admin);
    expected_objects.verify(&dynamic_client).await?;
    ensure!(slow.applied() >= (WORKERS * WORKERS) as u64, "they were not slow");
    health_monitor.end()
}
