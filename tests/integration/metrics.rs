//! The metrics of the daemon.

mod families;

use anyhow::{Result, ensure};
use portreeve_testing::{ControlPlane, eventually};

use crate::fixtures::{
    LIMIT,
    daemon::{ALL_CONTROLLERS, Daemon},
};

#[tokio::test]
async fn queues_have_the_names_of_kubernetes() -> Result<()> {
    let plane = ControlPlane::shared().await;
    let daemon = Daemon::start(plane, "queue-names", &[&*ALL_CONTROLLERS, "--dry-run"]).await?;
    let queues = eventually(LIMIT, "the metrics of all queues", || async {
        let queues = daemon.admin.metrics().await?.values("workqueue_depth", "name");
        ensure!(queues.len() == 12, "{queues:?}");
        anyhow::Ok(queues)
    })
    .await?;
    let others = queues.iter().filter(|name| !name.starts_with("garbage_collector_"));
    let expected = [
        "ClusterRoleAggregator",
        "cronjob",
        "crontab",
        "foo",
        "namespace",
        "pvcprotection",
        "pvprotection",
        "root_ca_cert_publisher",
        "serviceaccount",
        "ttl_jobs_to_delete",
    ];
    ensure!(others.eq(expected.iter()), "{queues:?}");
    let (_, text) = daemon.admin.get("/readyz?verbose").await?;
    ensure!(text.contains("retries/crontab"), "{text}");
    Ok(())
}
