//! The metrics of the daemon.

mod families;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, eventually};

use crate::{
    fixtures::{
        LIMIT,
        daemon::{ALL_CONTROLLERS, Daemon},
    },
    registry::PROFILES,
};

#[tokio::test]
async fn queues_have_the_names_of_kubernetes() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let daemon = Daemon::start(plane, "queue-names", &[&*ALL_CONTROLLERS, "--dry-run"]).await?;
    let expected: BTreeSet<_> = PROFILES.iter().flat_map(|profile| profile.queues).copied().collect();
    eventually(LIMIT, "the metrics of all queues", || async {
        let queues = daemon.admin.metrics().await?.values("workqueue_depth", "name");
        let queues: BTreeSet<_> = queues.iter().map(String::as_str).collect();
        ensure!(queues == expected, "found {queues:?}, expected {expected:?}");
        anyhow::Ok(())
    })
    .await?;
    let (_, text) = daemon.admin.get("/readyz?verbose").await?;
    ensure!(text.contains("retries/crontab"), "{text}");
    Ok(())
}
