//! Many owners whose dependents are orphaned slowly, all at once.

use std::time::Duration;

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, Fault, FaultProxy, Matcher, Times};

use super::record::Pulse;
use crate::{
    garbage::{
        draft::{config_map, secret},
        judge::Ledger,
        yard::{Policy, Yard},
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
    let yard = Yard::new(&plane, "orphans").await?;
    let mut ledger = Ledger::default();
    for number in 0..WORKERS {
        let owner = ledger.create_one(&yard, config_map(&format!("owner-{number}"))).await?;
        let child = |child| secret(&format!("child-{number}-{child}")).owned_by(&owner);
        ledger.create(&yard, (0..WORKERS).map(child)).await?;
        ledger.delete(&yard, &owner, Policy::Orphan).await?;
    }
    let releases = Matcher::any().method("PATCH").resource("secrets");
    let slow = proxy.fault(releases, Fault::Delay(LATE), Times::UntilHealed);
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig(), "patient")?;
    let daemon = Daemon::start_as(&plane, &kubeconfig, "patient", FLAGS).await?;
    let pulse = Pulse::of(daemon.admin);
    ledger.judge(&yard).await?;
    ensure!(slow.answered() >= (WORKERS * WORKERS) as u64, "they were not slow");
    pulse.end()
}
